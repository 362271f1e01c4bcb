"""Where results are stored: tables of Parquet files, the status of a running sweep, and copies in
experiment trackers (W&B, TensorBoard, MLflow).

Nothing here knows what a run is, and nothing imports jax. Start with `table.py`.
"""
