package verbs

// A FLUSH completes when all that the QP has written to the peer's memory before, within what the FLUSH names, is where
// FlushType wants it. An ATOMIC WRITE behind it, of 8 bytes to an address that is a multiple of 8, is done after that, at
// once as a whole. Both take of MaxRDAtomic as READs and atomics do (IBTA annex A19).

// FlushType says how far written data is to get (ibv_placement_type, same values); both may be chosen.
type FlushType uint8

const (
	FlushGlobal     FlushType = 1 << 0 // to where all processors and devices of the peer see it
	FlushPersistent FlushType = 1 << 1 // to where it outlives a loss of power: of a region of RegFile, the file
)

// String is the ibverbs names without IBV_FLUSH_, joined by "|".
func (t FlushType) String() string { return flags([]string{"GLOBAL", "PERSISTENT"}, uint32(t)) }

// FlushLevel says what is flushed (ibv_selectivity_level, same values).
type FlushLevel uint8

const (
	FlushRange FlushLevel = iota // the bytes that the request names
	FlushMR                      // the whole region that RKey belongs to; the address does not count
)

func (l FlushLevel) String() string { return name([]string{"RANGE", "MR"}, int(l), "flush level") }

// checkFlush checks what only a Flush request has.
func (qp *QP) checkFlush(wr *SendWR) error {
	const what = "post send to"
	switch {
	case len(wr.SGList) > 0:
		return Errorf(ErrInvalid, qp.op(what), "FLUSH has no SGList")
	case wr.FlushType == 0 || wr.FlushType&^(FlushGlobal|FlushPersistent) != 0:
		return Errorf(ErrInvalid, qp.op(what), "FlushType %v is not GLOBAL, PERSISTENT or both", wr.FlushType)
	case wr.FlushLevel > FlushMR:
		return Errorf(ErrInvalid, qp.op(what), "FlushLevel: %v", wr.FlushLevel)
	}
	return nil
}
