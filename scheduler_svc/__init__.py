"""Scheduler service: owns the queues and the block manager of a cell and drives its workers."""
