package iwarp

// The outstanding READs and atomics of this side, which the peer responds to in order (RFC 5040
// §5.5, RFC 7306 §5).

// outstandingRead is a READ or atomic whose response has not come, or not in full.
type outstandingRead struct {
	number uint64 // of the request, as the cursor counts them
	id     uint32 // of an atomic
}

// reads is all of them.
type reads struct {
	list   []outstandingRead // oldest first
	placed uint64            // bytes of the oldest READ's response that are placed
	nextID uint32            // of an atomic
	rtr    bool              // the response to the ready-to-receive READ is still to come, before all others
}

// reset starts anew.
func (r *reads) reset() { *r = reads{} }

// outstanding is how many READs and atomics the peer has to respond to.
func (r *reads) outstanding() int {
	if r.rtr {
		return len(r.list) + 1
	}
	return len(r.list)
}

// sent notes that request n, a READ or atomic, was sent, an atomic with the identifier nextID.
func (r *reads) sent(n uint64) {
	r.list = append(r.list, outstandingRead{n, r.nextID})
	r.nextID++
}

// moved notes that a READ or an atomic was moved directly.
func (r *reads) moved() {
	r.placed = 0
	r.nextID++
}

// place moves on to off bytes of the oldest READ's response.
func (r *reads) place(off uint64) { r.placed = off }

// responded takes the oldest off the list, and returns its number.
func (r *reads) responded() uint64 {
	n := r.list[0].number
	r.list = r.list[:copy(r.list, r.list[1:])]
	r.placed = 0
	return n
}

// rtrSent notes that a ready-to-receive READ was sent, rtrResponded that its response came.
func (r *reads) rtrSent()      { r.rtr = true }
func (r *reads) rtrResponded() { r.rtr = false }
