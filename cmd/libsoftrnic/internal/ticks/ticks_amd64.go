package ticks

// Now is the processor's time stamp counter. Those that count evenly, as all do since 2008, run at the processor's nominal
// frequency, which is a GHz or more.
func Now() uint64
