package verbs

import "sync"

// SRQ is a shared receive queue (ibv_srq): any number of QPs of its PD, over either transport, take their receive
// requests from it. A message that finds it empty is answered as one that finds an empty receive queue.
type SRQ struct {
	pd      *PD
	context any
	maxSGE  int
	xrcd    *XRCD // of an XRC SRQ: and
	cq      *CQ   // where its requests complete
	num     uint32

	// guarded by pd.dev.mu
	users int // QPs
	dead  bool

	mu        sync.Mutex // after QP locks, before CQs'
	queue     queue[RecvWR]
	limit     int // 0: not armed
	destroyed bool
}

// SRQAttr is what an SRQ has and can be asked (ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int
	MaxSGE int
	// Limit arms an event: EventSRQLimitReached comes once, when fewer than Limit requests are left; then it is 0 again.
	// 0 is no event.
	Limit int
}

// SRQInitAttr says how to create an SRQ (ibv_srq_init_attr).
type SRQInitAttr struct {
	Context any // for the application: SRQ.Context
	Attr    SRQAttr
	// XRCD makes it an XRC SRQ of that domain, whose requests complete to CQ (ibv_srq_init_attr_ex); both nil if not.
	XRCD *XRCD
	CQ   *CQ
}

// SRQAttrMask chooses attributes (ibv_srq_attr_mask, same values).
type SRQAttrMask uint32

const (
	SRQMaxWR SRQAttrMask = 1 << 0
	SRQLimit SRQAttrMask = 1 << 1
)

// String is the constants' names, joined by "|".
func (m SRQAttrMask) String() string { return flags([]string{"SRQMaxWR", "SRQLimit"}, uint32(m)) }

// CreateSRQ makes a shared receive queue, of exactly the size asked for.
func (pd *PD) CreateSRQ(attr *SRQInitAttr) (*SRQ, error) {
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
	if (attr.XRCD == nil) != (attr.CQ == nil) || attr.XRCD != nil && (attr.XRCD.dev != d || attr.CQ.dev != d) {
		return nil, Errorf(ErrInvalid, op, "XRCD and CQ come together, and of the PD's device")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if attr.XRCD != nil && (attr.XRCD.opens == 0 || attr.CQ.dead) {
		return nil, Errorf(ErrDestroyed, op, "the XRCD or the CQ is gone")
	}
	if pd.dead {
		return nil, Errorf(ErrDestroyed, op, "the PD is gone")
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

// PD is the protection domain.
func (s *SRQ) PD() *PD { return s.pd }

// Num is the number by which peers name an XRC SRQ (ibv_get_srq_num), 24 bits; 0 of others.
func (s *SRQ) Num() uint32 { return s.num }

// CQ is where the requests of an XRC SRQ complete; nil of others, whose QPs say that.
func (s *SRQ) CQ() *CQ { return s.cq }

// Context is what CreateSRQ was given.
func (s *SRQ) Context() any { return s.context }

// Modify changes the attributes that mask chooses. MaxWR must leave room for what is posted and reach up to Limit.
func (s *SRQ) Modify(attr *SRQAttr, mask SRQAttrMask) error {
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
		bigger := newRecvQueue(size, s.maxSGE)
		for s.queue.len() > 0 {
			pushRecv(&bigger, s.queue.at(0))
			s.queue.pop()
		}
		s.queue = bigger
	}
	if s.limit = limit; mask&SRQLimit != 0 {
		s.checkLimit()
	}
	return nil
}

// Query is the SRQ's attributes as they are now.
func (s *SRQ) Query() (SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alive("query SRQ"); err != nil {
		return SRQAttr{}, err
	}
	return SRQAttr{MaxWR: len(s.queue.slots), MaxSGE: s.maxSGE, Limit: s.limit}, nil
}

// PostRecv queues receive work requests, in order; they are copied. Errors are as for QP.PostRecv.
func (s *SRQ) PostRecv(wrs ...*RecvWR) error {
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

// Destroy ends the SRQ. ErrBusy while a QP uses it. What is posted vanishes without completion.
func (s *SRQ) Destroy() error {
	const op = "destroy SRQ"
	d := s.pd.dev
	d.mu.Lock()
	if s.dead || s.users > 0 {
		defer d.mu.Unlock()
		if s.dead {
			return Errorf(ErrDestroyed, op, "it is destroyed already")
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
	s.destroyed = true
	s.queue = queue[RecvWR]{}
	s.mu.Unlock()
	d.events.forget(func(e *AsyncEvent) bool { return e.SRQ == s })
	return nil
}

func (s *SRQ) alive(op string) error {
	if s.destroyed {
		return Errorf(ErrDestroyed, op, "it is destroyed")
	}
	return nil
}

// take moves the oldest request to a QP's own queue, if there is one.
func (s *SRQ) take(to *queue[RecvWR]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.len() == 0 {
		return
	}
	pushRecv(to, s.queue.at(0))
	s.queue.pop()
	s.checkLimit()
}

// checkLimit reports that few requests are left, once.
func (s *SRQ) checkLimit() {
	if s.queue.len() < s.limit {
		s.limit = 0
		s.pd.dev.events.add(AsyncEvent{Type: EventSRQLimitReached, SRQ: s})
	}
}
