package fabric

import "time"

// A function of a host may not use other hosts, which run at the same time. What the end of a flow
// begins elsewhere takes the time apart at least, or is prepared before.

// chain is flows from one host to another, each of which begins when the one before has ended. The
// connection of the next one is opened before that.
type chain struct {
	r        *run
	load     int
	w        *workload
	from, to int
	left     int   // not opened
	next     *flow // opened, and not begun
	waits    bool  // for next, as the flow before has ended
}

// repeated starts a flow, and when it is done the next, w.Rounds in all.
func (r *run) repeated(load int, w *workload, start time.Duration, from, to int) {
	c := &chain{r: r, load: load, w: w, from: from, to: to, left: w.Rounds, waits: true}
	r.at(start, from, c.open)
}

// each is the number of connections that repeated has at a time.
func (r *run) each(w *workload) int {
	if w.Rounds > 1 && r.apart > 0 {
		return 2
	}
	return 1
}

// open opens the next flow, when no host runs.
func (c *chain) open() {
	c.left--
	f := &flow{load: c.load, from: c.from, to: c.to, bytes: int64(c.w.Size), done: c.ended}
	if c.r.open(f) == nil {
		return
	}
	if c.next = f; c.waits {
		c.begin()
	}
}

// begin begins the next flow.
func (c *chain) begin() {
	f, h := c.next, c.r.nodes[c.from].h
	c.next, c.waits = nil, false
	now := h.Now()
	if c.left > 0 && c.r.apart > 0 { // those of many chains are opened together
		h.Alone((now+c.r.apart+ahead-1).Truncate(ahead)-now, c.open)
	}
	f.begin(now, now)
	f.conn.post()
}

// ended is called when a flow has ended.
func (c *chain) ended() {
	switch c.waits = true; {
	case c.next != nil:
		c.begin()
	case c.left > 0 && c.r.apart == 0: // no other host runs
		c.open()
	}
}

// rounds runs a collective operation w.Rounds times. In a round, each host has so many flows as
// requester, of which ended is told with the host's index in hosts. When all of a host have ended,
// it tells the others, and the next round begins when all have.
func (r *run) rounds(w *workload, hosts, flows []int, prepare func(), begin func(round int)) (ended func(i int)) {
	round, missing, left := 0, 0, make([]int, len(hosts))
	next := func() {
		missing = len(hosts)
		copy(left, flows)
		begin(round)
	}
	r.at(time.Duration(w.Start), hosts[0], func() {
		prepare()
		if r.err == nil {
			next()
		}
	})
	return func(i int) {
		if left[i]--; left[i] > 0 || round+1 == w.Rounds {
			return
		}
		r.nodes[hosts[i]].h.Alone(r.apart, func() {
			if missing--; missing == 0 {
				round++
				next()
			}
		})
	}
}
