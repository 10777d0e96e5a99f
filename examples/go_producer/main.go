// Publishes four rollouts without Rollstream's SDK, as docs/wire_format.md describes; from here with
//
//	go run . -schema ../../schemas/rollstream/schemas/avsc/ingest_record.v3.avsc
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// In front of each record: Avro's marker, and the fingerprint of ingest_record.v3.
var prefix = []byte{0xc3, 0x01, 0x66, 0x19, 0x60, 0x46, 0x39, 0x9f, 0x82, 0x17}

type rollout struct {
	example, group, uid string
	groupSize           int
	weightStep          int64 // Of the policy that sampled.
	prompt, output      []int32
	logprobs            []float32
	mask                []bool // nil: every output token is trained on.
	reward              float64
}

// columns is one record of rollouts of one partition. Fields that are left out have their defaults.
func columns(environment string, partitions int, rollouts []rollout) map[string]any {
	each := func(of func(rollout) any) (packed []byte) { // One number an entry, or several.
		for _, r := range rollouts {
			packed = must(binary.Append(packed, binary.LittleEndian, of(r)))
		}
		return packed
	}
	record := map[string]any{
		"environment": environment, "worker_id": "go-worker-7",
		"partitions": partitions, "count": len(rollouts),
		"created_ts":   each(func(rollout) any { return time.Now().UnixMicro() }),
		"prompt_count": each(func(r rollout) any { return int32(len(r.prompt)) }),
		"token_count":  each(func(r rollout) any { return int32(len(r.output)) }),
		"reward":       each(func(r rollout) any { return r.reward }),
		"logprobs":     1, // Each entry has it.
		"loss_mask":    2, // Some have it.
	}
	var shared []map[string]any
	indexes := map[string]int32{}
	record["shared_indexes"] = each(func(r rollout) any {
		combination := fmt.Sprintf("%d %d", r.weightStep, r.groupSize)
		if _, known := indexes[combination]; !known {
			indexes[combination] = int32(len(shared))
			shared = append(shared, map[string]any{
				"group_size":     r.groupSize,
				"policy_version": fmt.Sprintf("step-%d", r.weightStep), "weight_step": r.weightStep,
			})
		}
		return indexes[combination]
	})
	record["shared"] = shared
	var payload []byte // Texts, then arrays, in the order of the schema's fields.
	text := func(name string, of func(rollout) string) {
		record[name] = each(func(r rollout) any { return int32(len(of(r))) })
		payload = append(payload, each(func(r rollout) any { return []byte(of(r)) })...)
	}
	text("example_id", func(r rollout) string { return r.example })
	text("group_uid", func(r rollout) string { return r.group })
	text("rollout_uid", func(r rollout) string { return r.uid })
	payload = append(payload, each(func(r rollout) any { return r.prompt })...)
	payload = append(payload, each(func(r rollout) any { return r.output })...)
	payload = append(payload, each(func(r rollout) any { return r.logprobs })...)
	payload = append(payload, each(func(r rollout) any { return r.mask != nil })...) // Which have one.
	payload = append(payload, each(func(r rollout) any { return r.mask })...)
	record["payload"] = payload
	return record
}

func main() {
	bootstrap := flag.String("bootstrap", "localhost:9092", "")
	namespace := flag.String("namespace", "rollstream", "")
	environment := flag.String("environment", "math", "")
	file := flag.String("schema", "", "ingest_record.v3.avsc")
	flag.Parse()
	schema := must(avro.ParseBytes(must(os.ReadFile(*file))))
	fingerprint := must(schema.FingerprintUsing(avro.CRC64AvroLE))
	if !bytes.Equal(fingerprint, prefix[2:]) {
		log.Fatalf("the schema's fingerprint is %x, not %x", fingerprint, prefix[2:])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := must(kgo.NewClient(kgo.SeedBrokers(*bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(16<<20)))
	defer client.Close()
	topic := fmt.Sprintf("%s.rollouts.%s.1", *namespace, *environment)
	partitions := len(must(kadm.NewClient(client).ListTopics(ctx, topic))[topic].Partitions)
	if partitions == 0 {
		log.Fatalf("there is no topic %s", topic)
	}
	murmur2 := kgo.StickyKeyPartitioner(nil).ForTopic(topic) // Of a key, as Java's client.

	group, alone := "go-"+rand.Text(), "go-"+rand.Text()
	for _, rollouts := range [][]rollout{{
		{"aime-17", group, group + "-0", 3, 120, []int32{101, 102}, []int32{7, 8, 9},
			[]float32{-0.5, -0.25, -0.125}, nil, 1},
		{"aime-17", group, group + "-1", 3, 120, []int32{101, 102}, []int32{7, 10},
			[]float32{-0.5, -2}, []bool{true, false}, 0},
		{"aime-17", group, group + "-2", 3, 121, []int32{101, 102}, []int32{11, 12, 13, 14},
			[]float32{-1, -1, -1, 0}, nil, 0.5},
	}, {
		{"aime-18", alone, alone + "-0", 1, 121, []int32{103}, []int32{15}, []float32{-3}, nil, 1},
	}} {
		partition := murmur2.Partition(&kgo.Record{Key: []byte(rollouts[0].group)}, partitions)
		encoded := must(avro.Marshal(schema, columns(*environment, partitions, rollouts)))
		sent := must(client.ProduceSync(ctx, &kgo.Record{ // A retry sends the same uids.
			Topic: topic, Partition: int32(partition), Value: slices.Concat(prefix, encoded),
			Headers: []kgo.RecordHeader{{Key: "schema", Value: []byte("3")}},
		}).First())
		fmt.Printf("%d rollouts: partition %d, offset %d\n", len(rollouts), sent.Partition, sent.Offset)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
