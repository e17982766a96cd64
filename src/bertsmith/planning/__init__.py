"""What a run will take, before it is paid for: FLOP, bytes and steps, priced by the hardware."""
