package fabric

import "time"

// all-reduce sends what the algorithms send. The bytes are a pattern, and no sums are computed.

// ring is a ring all-reduce: each host sends a share of the data to the next, and what it has
// received in the step before, in 2(n-1) steps.
func (r *run) ring(load int, w *workload, hosts []int) error {
	n := len(hosts)
	steps := 2 * (n - 1)
	share := max(1, (int64(w.Size)+int64(n)-1)/int64(n))
	if err := r.opens(n); err != nil {
		return err
	}
	r.rounds(w, n*steps, hosts[0], func(ended func()) {
		var send func(i, step int)
		send = func(i, step int) {
			f := &flow{load: load, from: hosts[i], to: hosts[(i+1)%n], bytes: share, done: ended, arrived: func() {
				if step+1 < steps {
					send((i+1)%n, step+1)
				}
			}}
			r.begin(f, true, steps)
		}
		for i := range hosts {
			send(i, 0)
		}
	})
	return r.plans(n, steps, w.Rounds)
}

// tree is an all-reduce on a binary tree: sums go up to the first host, and the result down. The
// data is divided into chunks, of which several are on their way at a time.
func (r *run) tree(load int, w *workload, hosts []int) error {
	n := len(hosts)
	share := max(1, (int64(w.Size)+int64(w.Chunks)-1)/int64(w.Chunks))
	if err := r.opens(2, n-1); err != nil {
		return err
	}
	r.rounds(w, 2*(n-1)*w.Chunks, hosts[0], func(ended func()) {
		send := func(from, to int, arrived func()) {
			r.begin(&flow{load: load, from: hosts[from], to: hosts[to], bytes: share, done: ended, arrived: arrived}, true, w.Chunks)
		}
		children := func(i int) int { return max(0, min(2, n-1-2*i)) }
		var down func(i int)
		down = func(i int) {
			for c := 2*i + 1; c < 2*i+1+children(i); c++ {
				send(i, c, func() { down(c) })
			}
		}
		for range w.Chunks {
			missing := make([]int, n) // children whose sums have not arrived
			var up func(i int)
			up = func(i int) {
				switch parent := (i - 1) / 2; {
				case i == 0:
					down(0)
				default:
					send(i, parent, func() {
						if missing[parent]--; missing[parent] == 0 {
							up(parent)
						}
					})
				}
			}
			for i := range hosts {
				missing[i] = children(i)
			}
			for i := range hosts {
				if missing[i] == 0 {
					up(i)
				}
			}
		}
	})
	return r.plans(2, n-1, w.Chunks, w.Rounds)
}

// rounds runs a collective operation of so many flows w.Rounds times.
func (r *run) rounds(w *workload, flows, host int, do func(ended func())) {
	left, missing := w.Rounds, 0
	var next func()
	next = func() {
		left--
		missing = flows
		do(func() {
			if missing--; missing == 0 && left > 0 {
				next()
			}
		})
	}
	r.at(time.Duration(w.Start), host, next)
}
