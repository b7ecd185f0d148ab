package ticks

// Now returns the processor's time stamp counter. Since 2008 it counts at a constant rate, the
// processor's nominal frequency, which is 1 GHz or more.
func Now() uint64
