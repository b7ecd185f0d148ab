package verbs

// A FLUSH names a part of the peer's memory. It completes when all data that the QP has written
// there before has reached the placement that FlushType requests. An ATOMIC WRITE atomically writes
// 8 bytes to an address that is a multiple of 8, after all FLUSHes posted before it are complete.
// Both count against MaxRDAtomic, as READs and atomics do (IBTA annex A19).

// FlushType is the placement that a FLUSH waits for (ibv_placement_type, same values). Both bits
// may be set.
type FlushType uint8

const (
	FlushGlobal FlushType = 1 << 0 // visible to all processors and devices of the peer
	// In storage that survives a loss of power: the file of a region (MRInitAttr.File).
	FlushPersistent FlushType = 1 << 1
)

// String returns the ibverbs names without IBV_FLUSH_, joined by "|".
func (t FlushType) String() string { return flags([]string{"GLOBAL", "PERSISTENT"}, uint32(t)) }

// FlushLevel selects the memory that is flushed (ibv_selectivity_level, same values).
type FlushLevel uint8

const (
	FlushRange FlushLevel = iota // the bytes from RemoteAddr on, FlushLength of them
	FlushMR                      // the whole region that RKey belongs to; the address is ignored
)

func (l FlushLevel) String() string { return name([]string{"RANGE", "MR"}, int(l), "flush level") }
