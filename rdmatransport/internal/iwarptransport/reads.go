package iwarptransport

// READs and atomics that wait for a response. The peer responds in order (RFC 5040 §5.5, RFC 7306
// §5).

// outstandingRead is a READ or atomic without a complete response.
type outstandingRead struct {
	number uint64 // number of the request in cursor
	id     uint32 // of an atomic
}

// reads is the list of all outstanding READs and atomics.
type reads struct {
	list   []outstandingRead // oldest first
	placed uint64            // bytes of the oldest READ's response that are placed
	nextID uint32            // of the next atomic
	// The response to the ready-to-receive READ is outstanding. It comes before all others.
	rtr bool
}

// reset clears the state.
func (r *reads) reset() { *r = reads{} }

// outstanding returns the number of READs and atomics without a response.
func (r *reads) outstanding() int {
	if r.rtr {
		return len(r.list) + 1
	}
	return len(r.list)
}

// sent records that request n, a READ or atomic, was sent. An atomic has the identifier nextID.
func (r *reads) sent(n uint64) {
	r.list = append(r.list, outstandingRead{n, r.nextID})
	r.nextID++
}

// moved records that a READ or an atomic was moved directly.
func (r *reads) moved() {
	r.placed = 0
	r.nextID++
}

// place records that off bytes of the oldest READ's response are placed.
func (r *reads) place(off uint64) { r.placed = off }

// responded removes the oldest entry, and returns its number.
func (r *reads) responded() uint64 {
	n := r.list[0].number
	r.list = r.list[:copy(r.list, r.list[1:])]
	r.placed = 0
	return n
}

// rtrSent records that a ready-to-receive READ was sent. rtrResponded records its response.
func (r *reads) rtrSent()      { r.rtr = true }
func (r *reads) rtrResponded() { r.rtr = false }
