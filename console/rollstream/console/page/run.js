
"use strict";
// Texts of a run come from whoever published them: they go into text nodes alone.
(() => {
  const whole = JSON.parse(document.getElementById("data").textContent); // null: a server has it.
  const PAGE = 50, REFRESH_MS = 5000, READING_MS = 300;
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;
  let charts = [], environments = [], shown = null, first = 0, asked = 0;

  function made(tag, text, className) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (className) node.className = className;
    return node;
  }
  function number(value, digits = 4) {
    if (value === null || value === undefined) return "–";
    return Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(digits));
  }
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const time = (us) => new Date(us / 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
  async function answer(path) {
    const response = await fetch(path);
    const value = await response.json();
    if (!response.ok) throw new Error(value.error || response.statusText);
    return value;
  }

  // Theme.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function setTheme(name) { root.dataset.theme = name; if (shown) drawCharts(shown.charts); }
  let kept = null;
  try { kept = localStorage.getItem("theme"); } catch { /* A file has no storage everywhere. */ }
  root.dataset.theme = kept || (dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!kept) setTheme(dark.matches ? "dark" : "light"); });
  at("theme").addEventListener("click", () => {
    kept = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", kept); } catch { /* Likewise. */ }
    setTheme(kept);
  });
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Charts.
  function options(chart, width) {
    const text = colour("--dim"), grid = { stroke: colour("--line"), width: 1 };
    const stacked = chart.kind === "stacked", labels = chart.labels;
    const axis = { stroke: text, grid, ticks: grid, font: "11px system-ui", size: 46, values: (_, ticks) => ticks.map((one) => one === null ? "" : short.format(one)) };
    const x = chart.axis === "time" ? { ...axis, values: undefined, size: 40 } : { ...axis, size: 30, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] };
    if (labels) x.values = (_, ticks) => ticks.map((one) => labels[one] ?? "");
    const name = labels ? "tokens" : chart.axis;
    const bars = uPlot.paths.bars({ size: [0.85, 60] });
    return {
      width, height: 230, cursor: { drag: { x: true, y: false } },
      hooks: { setSelect: [(plot) => { plot.zoomed = plot.select.width > 0; }] },
      scales: {
        x: { time: chart.axis === "time", range: (plot, low, high) => stacked ? [low - 0.6 * gap(plot.data[0]), high + 0.6 * gap(plot.data[0])] : low === high ? [low - 1, high + 1] : [low, high] },
        y: chart.kind === "logarithmic" ? { distr: 3 } : stacked ? { range: (_, low, high) => [0, high || 1] } : {},
      },
      axes: [x, axis],
      series: [
        { label: name, value: (_, one) => one === null ? "–" : labels ? labels[one] : chart.axis === "time" ? time(one * 1e6) : number(one) },
        ...chart.lines.map(([label], place) => {
          // An environment has one colour in all charts.
          const index = environments.includes(label) ? environments.indexOf(label) : place, stroke = colour(`--c${index % 6}`);
          return {
            label, stroke, spanGaps: true, width: 1.5, dash: index > 5 ? [4, 3] : undefined,
            ...(stacked ? { paths: bars, fill: stroke, width: 0, points: { show: false } } : {}),
            value: (plot, _value, series, row) => row === null ? "–" : number(plot.shown.lines[series - 1][1][row]),
          };
        }),
      ],
    };
  }
  function gap(x) { let least = Infinity; for (let i = 1; i < x.length; i++) least = Math.min(least, x[i] - x[i - 1]); return Number.isFinite(least) ? least : 1; }
  function values(chart) {
    const lines = chart.lines.map(([, one]) => one);
    if (chart.kind === "logarithmic") return [chart.x, ...lines.map((one) => one.map((value) => value > 0 ? value : null))];
    if (chart.kind !== "stacked") return [chart.x, ...lines];
    // The first one stands on all others, and is drawn before them.
    const sums = chart.x.map(() => 0), stacks = [];
    for (const line of [...lines].reverse()) { line.forEach((one, i) => { sums[i] += one || 0; }); stacks.unshift([...sums]); }
    return [chart.x, ...stacks];
  }
  // New points of the same lines: what a reader zoomed into stays.
  function drawPoints(all) {
    const drawn = all.filter((one) => one.x.length && one.lines.length);
    const same = drawn.length === charts.length && drawn.every((one, index) => {
      const before = charts[index].shown, names = (chart) => JSON.stringify([chart.title, chart.labels, chart.lines.map(([name]) => name)]);
      return names(one) === names(before);
    });
    if (!same) return drawCharts(all);
    drawn.forEach((one, index) => {
      const plot = charts[index];
      plot.shown = one;
      plot.setData(values(one), !plot.zoomed);
      if (plot.zoomed) plot.redraw();
    });
  }
  function drawCharts(all) {
    charts.forEach((one) => one.destroy());
    charts = [];
    const box = at("charts"), cards = all.map((chart) => {
      const card = made("div", null, "card");
      card.append(made("h2", chart.title), made("p", chart.note, "note"), made("div"));
      return card;
    });
    box.replaceChildren(...cards);
    all.forEach((chart, index) => {
      const place = cards[index].lastChild;
      if (!chart.x.length || !chart.lines.length) { place.append(made("p", "nothing yet", "empty")); return; }
      const plot = new uPlot(options(chart, place.clientWidth), values(chart), place);
      plot.shown = chart;
      plot.over.addEventListener("dblclick", () => { plot.zoomed = false; });
      charts.push(plot);
    });
    root.dataset.charts = charts.length;
  }
  new ResizeObserver(() => charts.forEach((one) => {
    const width = one.root.parentNode.clientWidth;
    if (width && width !== one.width) one.setSize({ width, height: 230 });
  })).observe(at("charts"));

  // The run.
  function drawRun(run) {
    const same = shown && JSON.stringify(shown.charts) === JSON.stringify(run.charts);
    shown = run;
    document.title = `${run.name} · Rollstream`;
    at("name").textContent = run.name;
    const left = run.unread ? `; ${number(run.unread)} older files are still being read` : "";
    at("from").textContent = `Read at ${time(run.now_ts)} from ${run.from}${left}`;
    root.dataset.unread = run.unread;
    environments = run.environments;
    at("facts").replaceChildren(...run.facts.map(([name, value]) => {
      const box = made("div");
      const told = typeof value === "string" ? time(+value.slice(1)) : number(value);
      box.append(made("dt", name), made("dd", told));
      return box;
    }));
    const stuck = run.stuck.map((one) => {
      const card = made("div", null, `card ${one.level === "warning" ? "warning" : "bad"}`);
      card.append(made("strong", one.stage), made("span", `: ${one.reason}`));
      return card;
    });
    if (run.knows_stuck && !stuck.length) stuck.push(made("div", "No stage is stuck.", "card good"));
    at("stuck").replaceChildren(...(stuck.length ? [made("h2", "What is stuck"), ...stuck] : []));
    if (!same) drawPoints(run.charts);
    const table = made("table"), body = made("tbody"), box = made("div", null, "wide");
    for (const one of run.failures.slice(0, 100)) {
      const row = made("tr");
      row.append(made("td", one[0]), made("td", number(one[2])), made("td", one[1]));
      body.append(row);
    }
    table.append(body);
    box.append(table);
    at("failures").replaceChildren(...(run.failures.length ? [made("h2", "Why members failed"), box] : []));
    at("notes").replaceChildren(...run.notes.slice(0, 50).map((one) => made("div", one, "card warning")));
    const select = at("environment");
    for (const name of run.environments) {
      if ([...select.options].some((one) => one.value === name)) continue;
      const option = made("option", name);
      option.value = name;
      select.append(option);
    }
    at("run").setAttribute("aria-busy", "false");
    return !same;
  }

  // The table.
  function search() {
    const query = { text: at("text").value.trim(), environment: at("environment").value, order: at("order").value };
    if (!whole) return answer(`api/rollouts?${new URLSearchParams({ ...query, first, count: PAGE })}`);
    const keys = { newest: null, lowest_reward: (one) => one.reward, highest_reward: (one) => -one.reward, longest: (one) => -one.tokens };
    const key = keys[query.order];
    let rows = whole.rows.filter((one) => (!query.environment || one.environment === query.environment)
      && (!query.text || [one.uid, one.example_id, one.policy_version].some((text) => text.includes(query.text))));
    if (key) rows = rows.filter((one) => query.order === "longest" || one.reward !== null).sort((a, b) => key(a) - key(b));
    return Promise.resolve({ found: rows.length, rows: rows.slice(first, first + PAGE) });
  }
  async function drawRows() {
    const mine = ++asked;
    let found;
    try { found = await search(); } catch (error) { at("found").textContent = error.message; return; }
    if (mine !== asked) return; // A newer search was begun meanwhile.
    const of = whole && whole.found > whole.rows.length ? ` of the newest ${number(whole.rows.length)} of ${number(whole.found)}; rollstream page has all` : "";
    const last = Math.min(first + PAGE, found.found);
    at("found").textContent = found.found ? `${number(first + 1)} to ${number(last)} of ${number(found.found)}${of}` : `none${of}`;
    at("back").disabled = first === 0;
    at("on").disabled = last >= found.found;
    at("rows").replaceChildren(...found.rows.map((one) => {
      const row = made("tr"), cell = made("td"), link = made("a", one.uid);
      link.href = `#/rollout/${encodeURIComponent(one.key)}`;
      cell.append(whole && !whole.rollouts[one.key] ? made("span", one.uid) : link);
      cell.title = one.uid;
      const step = one.is_eval ? "eval" : number(one.step);
      row.append(cell, ...[one.environment, one.example_id, one.policy_version, one.reward === null ? "awaited" : number(one.reward), number(one.tokens), step, time(one.sealed_ts)].map((text) => made("td", text)));
      return row;
    }));
  }
  let typing = 0;
  const anew = () => { first = 0; drawRows(); };
  at("search").addEventListener("submit", (event) => { event.preventDefault(); anew(); });
  at("text").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(anew, 150); });
  at("environment").addEventListener("change", anew);
  at("order").addEventListener("change", anew);
  at("back").addEventListener("click", () => { first = Math.max(0, first - PAGE); drawRows(); });
  at("on").addEventListener("click", () => { first += PAGE; drawRows(); });

  // A rollout.
  const SHADES = [-0.1, -0.5, -1, -3]; // Log-probabilities, from likely to unlikely.
  const shade = (value) => value === null || value === undefined ? "" : `p${SHADES.filter((one) => value < one).length}`;
  function legend() {
    const key = made("div", null, "key");
    ["p ≥ 0.90", "≥ 0.61", "≥ 0.37", "≥ 0.05", "< 0.05"].forEach((text, index) => key.append(made("span", text, `p${index}`)));
    key.append(made("span", "masked", "masked"));
    return key;
  }
  function tokens(segment) {
    const box = made("div", null, "tokens"), hover = made("div", "", "hover");
    const half = segment.cut ? segment.tokens.length / 2 : -1;
    segment.tokens.forEach((text, index) => {
      if (index === half) box.append(made("em", `\n… ${number(segment.cut)} tokens are left out …\n`));
      const logprob = segment.logprobs && segment.logprobs[index], masked = segment.mask && !segment.mask[index];
      const token = made("span", text, `${shade(logprob)}${masked ? " masked" : ""}`);
      token.dataset.index = index + (half >= 0 && index >= half ? segment.cut : 0);
      if (logprob !== null && logprob !== undefined) token.dataset.logprob = logprob;
      if (masked) token.dataset.masked = "yes";
      box.append(token);
    });
    box.addEventListener("pointerover", (event) => {
      const data = event.target.dataset;
      if (data.index) hover.textContent = `token ${data.index}${data.logprob === undefined ? "" : `, log-prob ${data.logprob}`}${data.masked ? ", masked" : ""}`;
    });
    return [box, hover];
  }
  function drawRollout(one) {
    const box = at("rollout"), back = made("a", "← the run");
    back.href = "#/";
    const head = made("section", null, "card");
    head.append(made("h2", one.rollout_uid), ...one.head.map((line) => made("div", line)));
    const several = one.segments.length > 1;
    const parts = one.segments.map((segment) => {
      const card = made("section", null, "card turn");
      if (several) card.append(made("h2", `Turn ${segment.segment_idx}`));
      card.append(made("p", `policy ${segment.policy_version} · weight step ${segment.weight_step} · ${segment.replica_id} · ${number(segment.prompt_count)} prompt tokens · ${number(segment.token_count)} output tokens · reward ${segment.reward === null ? "awaited" : number(segment.reward)} · row ${segment.row} · offset ${segment.log_offset}, entry ${segment.log_entry}`, "note"));
      for (const message of segment.messages) {
        const { role, content, ...rest } = message;
        const text = typeof content === "string" ? content : JSON.stringify(content ?? "");
        card.append(made("h3", role ?? "message"), made("pre", Object.keys(rest).length ? `${text}\n${JSON.stringify(rest)}` : text));
      }
      if (segment.prompt_text) card.append(made("h3", "Prompt"), made("pre", segment.prompt_text));
      card.append(made("h3", "Output"), ...(segment.logprobs || segment.mask ? [legend()] : []), ...tokens(segment));
      if (Object.keys(segment.metadata).length) card.append(made("h3", "Metadata"), made("pre", JSON.stringify(segment.metadata, null, 1)));
      return card;
    });
    box.replaceChildren(back, head, ...parts);
  }
  async function route() {
    const found = /^#\/rollout\/(.+)$/.exec(location.hash);
    at("run").hidden = Boolean(found);
    at("rollout").hidden = !found;
    if (!found) return;
    at("rollout").replaceChildren(made("p", "Reading …", "note"));
    scrollTo(0, 0);
    try {
      const key = decodeURIComponent(found[1]);
      const one = whole ? whole.rollouts[key] : await answer(`api/rollout?${new URLSearchParams({ key })}`);
      if (!one) throw new Error("this page does not hold that rollout; rollstream show does");
      drawRollout(one);
    } catch (error) {
      const back = made("a", "← the run");
      back.href = "#/";
      at("rollout").replaceChildren(back, made("p", error.message, "card bad"));
    }
  }
  addEventListener("hashchange", route);

  async function look() {
    try {
      const run = whole || await answer("api/run");
      const before = shown && shown.facts[1][1];
      // Late scores and new batches change rows that are shown; new rollouts move those behind.
      const changed = drawRun(run);
      if (changed && (first === 0 || before === run.facts[1][1])) await drawRows();
    } catch (error) {
      at("from").textContent = `${error.message}; this page tries again`;
    }
    if (!whole) setTimeout(look, shown && !shown.unread ? REFRESH_MS : READING_MS);
  }
  route();
  look();
})();
