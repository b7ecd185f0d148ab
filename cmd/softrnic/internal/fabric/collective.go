package fabric

// all-reduce sends what the algorithms send. The bytes are a pattern, and no sums are computed.
// What arrives at a host starts the next step there. The connections are opened before.

// ring is a ring all-reduce: each host sends a share of the data to the next, and what it has
// received in the step before, in 2(n-1) steps.
func (r *run) ring(load int, w *workload, hosts []int) error {
	n := len(hosts)
	steps := 2 * (n - 1)
	share := max(1, (int64(w.Size)+int64(n)-1)/int64(n))
	if err := r.opens(n); err != nil {
		return err
	}
	first, err := r.plansKept(w.Rounds, steps, n)
	if err != nil {
		return err
	}
	flows, conns := make([]int, n), make([]*connection, n)
	for i := range flows {
		flows[i] = steps
	}
	to := func(i int) *flow { return &flow{load: load, from: hosts[i], to: hosts[(i+1)%n], bytes: share} }
	var ended func(i int)
	ended = r.rounds(w, hosts, flows, func() {
		for i := range conns {
			conns[i] = r.keep(to(i), steps)
		}
	}, func(round int) {
		var send func(i, step int)
		send = func(i, step int) {
			f := to(i)
			f.done = func() { ended(i) }
			f.arrived = func() {
				if step+1 < steps {
					send((i+1)%n, step+1)
				}
			}
			r.send(conns[i], f, first+(round*steps+step)*n+i)
		}
		for i := range hosts {
			send(i, 0)
		}
	})
	return nil
}

// tree is an all-reduce on a binary tree: sums go up to the first host, and the result down. The
// data is divided into chunks, of which several are on their way at a time.
func (r *run) tree(load int, w *workload, hosts []int) error {
	n := len(hosts)
	share := max(1, (int64(w.Size)+int64(w.Chunks)-1)/int64(w.Chunks))
	if err := r.opens(2, n-1); err != nil {
		return err
	}
	first, err := r.plansKept(w.Rounds, w.Chunks, 2, n-1)
	if err != nil {
		return err
	}
	children := func(i int) int { return max(0, min(2, n-1-2*i)) }
	flows := make([]int, n)
	for i := range flows {
		flows[i] = w.Chunks * (children(i) + min(i, 1))
	}
	// Those of each host but the first with its parent.
	up, down := make([]*connection, n), make([]*connection, n)
	between := func(from, to int) *flow { return &flow{load: load, from: hosts[from], to: hosts[to], bytes: share} }
	var ended func(i int)
	ended = r.rounds(w, hosts, flows, func() {
		for i := n / 2; i < n; i++ { // these have no children, and begin
			up[i] = r.keep(between(i, (i-1)/2), w.Chunks)
		}
		for i := n/2 - 1; i > 0; i-- {
			up[i] = r.keep(between(i, (i-1)/2), w.Chunks)
		}
		for i := 1; i < n; i++ {
			down[i] = r.keep(between((i-1)/2, i), w.Chunks)
		}
	}, func(round int) {
		for chunk := range w.Chunks {
			number := first + (round*w.Chunks+chunk)*2*(n-1) - 1
			send := func(c *connection, from, to, number int, arrived func()) {
				f := between(from, to)
				f.done, f.arrived = func() { ended(from) }, arrived
				r.send(c, f, number)
			}
			var sendDown func(i int)
			sendDown = func(i int) {
				for c := 2*i + 1; c < 2*i+1+children(i); c++ {
					send(down[c], i, c, number+n-1+c, func() { sendDown(c) })
				}
			}
			missing := make([]int, n) // children whose sums have not arrived
			var sendUp func(i int)
			sendUp = func(i int) {
				parent := (i - 1) / 2
				if i == 0 {
					sendDown(0)
					return
				}
				send(up[i], i, parent, number+i, func() {
					if missing[parent]--; missing[parent] == 0 {
						sendUp(parent)
					}
				})
			}
			for i := range hosts {
				missing[i] = children(i)
			}
			for i := range hosts {
				if children(i) == 0 {
					sendUp(i)
				}
			}
		}
	})
	return nil
}
