package verbs

import "sync"

// SRQ is a shared receive queue (ibv_srq): any number of QPs of its device, over either transport,
// take their receive requests from it. The requests use regions of the SRQ's PD, regardless of the
// PD of the QP. An empty SRQ has the same effect on a QP as an empty receive queue.
type SRQ struct {
	pd      *PD
	context any
	maxSGE  int
	xrcd    *XRCD  // of an XRC SRQ, else nil
	cq      *CQ    // of an XRC SRQ: for the completions of its requests
	num     uint32 // of an XRC SRQ

	// protected by pd.dev.mu
	users int // QPs
	dead  bool

	events eventCounts // asynchronous events

	mu     sync.Mutex // after QP locks, before CQs'
	queue  queue[RecvWR]
	limit  int // 0 if the event is not armed
	closed bool
}

// SRQAttr has the attributes of an SRQ (ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int
	MaxSGE int
	// Limit arms EventSRQLimitReached, which is raised once when fewer than Limit requests are
	// left. Limit then becomes 0, which means not armed.
	Limit int
}

// SRQInitAttr holds the attributes that CreateSRQ takes (ibv_srq_init_attr).
type SRQInitAttr struct {
	Context any // for the application: SRQ.Context
	Attr    SRQAttr
	// XRCD and CQ are set for an XRC SRQ, which belongs to the XRC domain and whose requests
	// complete to the CQ (ibv_srq_init_attr_ex). Both are nil otherwise.
	XRCD *XRCD
	CQ   *CQ
}

// SRQAttrMask is a set of attributes (ibv_srq_attr_mask, same values).
type SRQAttrMask uint32

const (
	SRQMaxWR SRQAttrMask = 1 << 0
	SRQLimit SRQAttrMask = 1 << 1
)

// String returns the constants' names, joined by "|".
func (m SRQAttrMask) String() string { return flags([]string{"SRQMaxWR", "SRQLimit"}, uint32(m)) }

// CreateSRQ creates a shared receive queue with exactly the size in attr (ibv_create_srq,
// ibv_create_srq_ex).
func (pd *PD) CreateSRQ(attr *SRQInitAttr) (*SRQ, error) {
	if err := pd.dev.fault("create_srq"); err != nil {
		return nil, err
	}
	const op = "create SRQ"
	d := pd.dev
	if attr == nil {
		return nil, Errorf(ErrInvalid, op, "no attributes")
	}
	a := &attr.Attr
	if err := checkRange(op, "Attr.MaxWR", a.MaxWR, 1, d.attr.MaxSRQWR); err != nil {
		return nil, err
	}
	if err := checkRange(op, "Attr.MaxSGE", a.MaxSGE, 0, d.attr.MaxSRQSGE); err != nil {
		return nil, err
	}
	if err := checkRange(op, "Attr.Limit", a.Limit, 0, a.MaxWR); err != nil {
		return nil, err
	}
	if (attr.XRCD == nil) != (attr.CQ == nil) {
		return nil, Errorf(ErrInvalid, op, "one of XRCD and CQ is nil: an XRC SRQ needs both")
	}
	if attr.XRCD != nil && (attr.XRCD.dev != d || attr.CQ.dev != d) {
		return nil, Errorf(ErrInvalid, op, "XRCD or CQ is of another device than the PD")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if attr.XRCD != nil && (attr.XRCD.openCount == 0 || attr.CQ.dead) {
		return nil, Errorf(ErrClosed, op, "XRCD or CQ is closed")
	}
	if pd.dead {
		return nil, Errorf(ErrClosed, op, "the PD is closed")
	}
	if err := d.reserve(op, &d.srqs, d.attr.MaxSRQ, "MaxSRQ"); err != nil {
		return nil, err
	}
	pd.srqs++
	s := &SRQ{pd: pd, context: attr.Context, maxSGE: a.MaxSGE, xrcd: attr.XRCD, cq: attr.CQ,
		queue: newRecvQueue(a.MaxWR, a.MaxSGE), limit: a.Limit}
	if s.xrcd != nil {
		s.cq.users++
		s.xrcd.add(s)
	}
	return s, nil
}

// PD returns the protection domain.
func (s *SRQ) PD() *PD { return s.pd }

// Num returns the number that peers use to address an XRC SRQ (ibv_get_srq_num), 24 bits. It is 0
// for other SRQs.
func (s *SRQ) Num() uint32 { return s.num }

// CQ returns the CQ of an XRC SRQ. It is nil for other SRQs, whose requests complete to the RecvCQ
// of each QP.
func (s *SRQ) CQ() *CQ { return s.cq }

// Context returns the Context that the SRQ was created with.
func (s *SRQ) Context() any { return s.context }

// Modify changes the attributes that mask names (ibv_modify_srq). MaxWR must not be less than the
// number of posted requests or Limit.
func (s *SRQ) Modify(attr *SRQAttr, mask SRQAttrMask) error {
	if err := s.pd.dev.fault("modify_srq"); err != nil {
		return err
	}
	const op = "modify SRQ"
	if attr == nil {
		return Errorf(ErrInvalid, op, "no attributes")
	}
	if bad := mask &^ (SRQMaxWR | SRQLimit); bad != 0 {
		return Errorf(ErrInvalid, op, "mask %v has unknown bits", mask)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alive(op); err != nil {
		return err
	}
	size, limit := len(s.queue.slots), s.limit
	if mask&SRQMaxWR != 0 {
		size = attr.MaxWR
		if err := checkRange(op, "MaxWR", size, max(s.queue.len(), 1), s.pd.dev.attr.MaxSRQWR); err != nil {
			return err
		}
	}
	if mask&SRQLimit != 0 {
		limit = attr.Limit
	}
	if err := checkRange(op, "Limit", limit, 0, size); err != nil {
		return err
	}
	if size != len(s.queue.slots) {
		resized := newRecvQueue(size, s.maxSGE)
		for s.queue.len() > 0 {
			pushRecv(&resized, s.queue.at(0))
			s.queue.pop()
		}
		s.queue = resized
	}
	if s.limit = limit; mask&SRQLimit != 0 {
		s.raiseLimitReached()
	}
	return nil
}

// Query returns the SRQ's current attributes (ibv_query_srq).
func (s *SRQ) Query() (SRQAttr, error) {
	if err := s.pd.dev.fault("query_srq"); err != nil {
		return SRQAttr{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alive("query SRQ"); err != nil {
		return SRQAttr{}, err
	}
	return SRQAttr{MaxWR: len(s.queue.slots), MaxSGE: s.maxSGE, Limit: s.limit}, nil
}

// PostRecv appends copies of receive work requests to the queue, in order (ibv_post_srq_recv).
// Errors are as for QP.PostRecv.
func (s *SRQ) PostRecv(wrs ...*RecvWR) error {
	if err := s.pd.dev.fault("post_srq_recv"); err != nil {
		return &PostError{0, err}
	}
	const op = "post receive to SRQ"
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alive(op); err != nil {
		return &PostError{0, err}
	}
	for i, wr := range wrs {
		if detail, kind := postRecv(&s.queue, wr); kind != nil {
			return &PostError{i, Errorf(kind, op, "%s", detail)}
		}
	}
	return nil
}

// Close destroys the SRQ (ibv_destroy_srq). Posted requests are dropped without completion. Close
// waits until asynchronous events of the SRQ that TryGetAsyncEvent returned are acknowledged. The
// error is ErrBusy while a QP uses the SRQ, and ErrClosed after the first Close.
func (s *SRQ) Close() error {
	if err := s.pd.dev.fault("destroy_srq"); err != nil {
		return err
	}
	const op = "close SRQ"
	d := s.pd.dev
	d.mu.Lock()
	if s.dead || s.users > 0 {
		defer d.mu.Unlock()
		if s.dead {
			return Errorf(ErrClosed, op, "it is already closed")
		}
		return Errorf(ErrBusy, op, "%d QPs use it", s.users)
	}
	s.dead = true
	d.mu.Unlock()
	if s.xrcd != nil {
		s.xrcd.remove(s)
	}
	d.mu.Lock()
	if s.xrcd != nil {
		s.cq.users--
		s.xrcd.nsrqs--
	}
	s.pd.srqs--
	d.srqs--
	d.mu.Unlock()

	s.mu.Lock()
	s.closed = true
	s.queue = queue[RecvWR]{}
	s.mu.Unlock()
	d.events.discard(&s.events)
	return nil
}

// alive returns an error if the SRQ is closed.
func (s *SRQ) alive(op string) error {
	if s.closed {
		return Errorf(ErrClosed, op, "it is closed")
	}
	return nil
}

// take moves the oldest request, if there is one, to a QP's own queue.
func (s *SRQ) take(to *queue[RecvWR]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.len() == 0 {
		return
	}
	pushRecv(to, s.queue.at(0))
	s.queue.pop()
	s.raiseLimitReached()
}

// raiseLimitReached raises EventSRQLimitReached and disarms it, if fewer requests than the limit
// are left.
func (s *SRQ) raiseLimitReached() {
	if s.queue.len() < s.limit {
		s.limit = 0
		s.pd.dev.events.add(AsyncEvent{Type: EventSRQLimitReached, SRQ: s})
	}
}
