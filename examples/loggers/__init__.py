"""The metrics of each batch in TensorBoard, Weights & Biases and MLflow.

Map:

- ``run``             a small run in memory, whose batches the others log
- ``to_tensorboard``  event files
- ``to_wandb``        an offline run
- ``to_mlflow``       a folder of experiments
"""
