package fabric

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// workload is a table [[workload]] of a file.
type workload struct {
	Kind     string   `toml:"kind"`
	Start    duration `toml:"start"`
	Rounds   int      `toml:"rounds"`
	Size     size     `toml:"size"`
	Hosts    hostSet  `toml:"hosts"`
	Receiver int      `toml:"receiver"`
	Senders  hostSet  `toml:"senders"`
	Stagger  duration `toml:"stagger"`
	Shift    int      `toml:"shift"`
	Chunks   int      `toml:"chunks"`
	Load     float64  `toml:"load"`
	Sizes    string   `toml:"sizes"`
	Duration duration `toml:"duration"`
	Clients  hostSet  `toml:"clients"`
	Servers  hostSet  `toml:"servers"`
	Depth    int      `toml:"depth"`
	Reads    int      `toml:"reads"`
	File     string   `toml:"file"`

	given given
}

// workloads are the keys of each kind besides kind and start, and its function. Those before | must
// be there.
var workloads map[string]struct {
	keys  string
	start func(r *run, load int, w *workload, hosts []int) error
}

func init() { // the functions refer to it
	workloads = map[string]struct {
		keys  string
		start func(r *run, load int, w *workload, hosts []int) error
	}{
		"incast":          {"size | receiver senders stagger rounds", (*run).incast},
		"permutation":     {"size | hosts shift rounds", (*run).permutation},
		"all-to-all":      {"size | hosts rounds", (*run).allToAll},
		"all-reduce-ring": {"size | hosts rounds", (*run).ring},
		"all-reduce-tree": {"size | hosts rounds chunks", (*run).tree},
		"poisson":         {"load sizes duration | hosts", (*run).poisson},
		"storage":         {"clients servers size reads | depth", (*run).storage},
		"trace":           {"file |", (*run).trace},
	}
}

// schedule checks a workload and schedules its flows.
func (r *run) schedule(load int) error {
	w := &r.cfg.Workloads[load]
	kind, ok := workloads[w.Kind]
	if !ok {
		return fmt.Errorf("kind is %q: it must be one of %s", w.Kind, strings.Join(slices.Sorted(maps.Keys(workloads)), ", "))
	}
	must, may, _ := strings.Cut(kind.keys, "|")
	needed := strings.Fields(must)
	for _, key := range needed {
		if !w.given[key] {
			return fmt.Errorf("%s is missing: a workload of kind %s needs it", key, w.Kind)
		}
	}
	allowed := append(strings.Fields(may), append(needed, "kind", "start")...)
	for _, key := range slices.Sorted(maps.Keys(w.given)) {
		if !slices.Contains(allowed, key) {
			return fmt.Errorf("%s: a workload of kind %s has no such key", key, w.Kind)
		}
	}
	def(w.given, "rounds", &w.Rounds, 1)
	def(w.given, "chunks", &w.Chunks, 1)
	def(w.given, "depth", &w.Depth, 1)
	n := len(r.nodes)
	if err := runChecks([]check{{"rounds", float64(w.Rounds), 1, maxFlows}, {"chunks", float64(w.Chunks), 1, 1 << 10},
		{"depth", float64(w.Depth), 1, 1 << 10}, {"reads", float64(w.Reads), w.given.least("reads"), maxFlows},
		{"size", float64(w.Size), w.given.least("size"), 1 << 44}, {"receiver", float64(w.Receiver), 0, float64(n - 1)},
		{"shift", float64(w.Shift), w.given.least("shift"), float64(n - 1)},
		{"duration", float64(w.Duration), w.given.least("duration"), math.MaxInt64}}); err != nil {
		return err
	}
	hosts, err := w.Hosts.hosts(n, upTo(n))
	switch {
	case err != nil:
		return fmt.Errorf("hosts: %w", err)
	case len(hosts) < 2:
		return fmt.Errorf("hosts are %d: there must be at least 2", len(hosts))
	}
	return kind.start(r, load, w, hosts)
}

// plans adds to the number of flows, and checks it.
func (r *run) plans(factors ...int) error {
	n := 1
	for _, f := range factors {
		if n *= f; n > maxFlows {
			return fmt.Errorf("kind: it has more than %d flows", maxFlows)
		}
	}
	r.planned += n
	return nil
}

// plansKept is plans for flows of connections that are kept. It returns the number of the first.
func (r *run) plansKept(factors ...int) (first int, err error) {
	before := r.planned
	if err = r.plans(factors...); err == nil {
		first = maxFlows + len(r.kept)
		r.kept = append(r.kept, make([]*flow, r.planned-before)...)
	}
	return first, err
}

// opens checks the number of pairs of hosts that have QPs at a time.
func (r *run) opens(factors ...int) error {
	n := 2 * r.cfg.RDMA.QPs
	for _, f := range factors {
		if n *= f; n > maxOpen {
			return fmt.Errorf("kind: it has more than %d QPs at a time, with rdma.qps = %d", maxOpen, r.cfg.RDMA.QPs)
		}
	}
	return nil
}

// incast has many senders and one receiver.
func (r *run) incast(load int, w *workload, _ []int) error {
	others := slices.DeleteFunc(upTo(len(r.nodes)), func(i int) bool { return i == w.Receiver })
	senders, err := w.Senders.hosts(len(r.nodes), nil)
	switch {
	case err != nil:
		return fmt.Errorf("senders: %w", err)
	case w.Senders.list == nil && w.Senders.first > len(others):
		return fmt.Errorf("senders: %d: there are %d hosts besides the receiver", w.Senders.first, len(others))
	case w.Senders.list == nil && w.Senders.given:
		senders = others[:w.Senders.first]
	case senders == nil:
		senders = others
	case slices.Contains(senders, w.Receiver):
		return fmt.Errorf("senders: host %d is the receiver", w.Receiver)
	}
	if err := r.opens(len(senders), r.each(w)); err != nil {
		return err
	}
	for i, from := range senders {
		r.repeated(load, w, time.Duration(w.Start)+time.Duration(i)*time.Duration(w.Stagger), from, w.Receiver)
	}
	return r.plans(len(senders), w.Rounds)
}

// permutation has each host send to another one: the one that is Shift further, or a random one.
func (r *run) permutation(load int, w *workload, hosts []int) error {
	to := slices.Clone(hosts)
	switch random := r.random(load, 0); {
	case w.Shift >= len(hosts):
		return fmt.Errorf("shift is %d: there are %d hosts", w.Shift, len(hosts))
	case w.Shift > 0:
		to = append(to[w.Shift:], to[:w.Shift]...)
	default: // one cycle (Sattolo's algorithm), so that no host sends to itself
		for i := len(to) - 1; i > 0; i-- {
			k := random.IntN(i)
			to[i], to[k] = to[k], to[i]
		}
	}
	if err := r.opens(len(hosts), r.each(w)); err != nil {
		return err
	}
	for i, from := range hosts {
		r.repeated(load, w, time.Duration(w.Start), from, to[i])
	}
	return r.plans(len(hosts), w.Rounds)
}

// allToAll has each host send to all others at once.
func (r *run) allToAll(load int, w *workload, hosts []int) error {
	if err := r.opens(len(hosts), len(hosts)-1, r.each(w)); err != nil {
		return err
	}
	if err := r.plans(len(hosts), len(hosts)-1, w.Rounds); err != nil {
		return err
	}
	for i, from := range hosts {
		for k := 1; k < len(hosts); k++ {
			r.repeated(load, w, time.Duration(w.Start), from, hosts[(i+k)%len(hosts)])
		}
	}
	return nil
}

// storage has clients that read from servers, Depth requests at a time, each from a random server.
func (r *run) storage(load int, w *workload, _ []int) error {
	clients, err := w.Clients.hosts(len(r.nodes), nil)
	if err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	servers, err := w.Servers.hosts(len(r.nodes), nil)
	if err != nil {
		return fmt.Errorf("servers: %w", err)
	}
	if w.Servers.list == nil { // a number: the last hosts
		for i := range servers {
			servers[i] += len(r.nodes) - len(servers)
		}
	}
	for _, c := range clients {
		if slices.Contains(servers, c) {
			return fmt.Errorf("clients: host %d is a server too", c)
		}
	}
	if len(clients) == 0 || len(servers) == 0 {
		return errors.New("clients and servers must not be empty")
	}
	if err := r.opens(len(clients), min(len(servers), w.Reads)); err != nil {
		return err
	}
	first, err := r.plansKept(len(clients), w.Reads)
	if err != nil {
		return err
	}
	for i, c := range clients {
		number := first + i*w.Reads
		end := number + w.Reads
		r.at(time.Duration(w.Start), c, func() {
			// The servers are known before, and so are the connections.
			conns := map[int]*connection{}
			random := r.random(load, i)
			for range w.Reads {
				if s := servers[random.IntN(len(servers))]; conns[s] == nil {
					conns[s] = r.keep(&flow{load: load, from: s, to: c, read: true}, 0)
				}
			}
			if r.err != nil { // the run ends
				return
			}
			random = r.random(load, i)
			var next func()
			next = func() {
				if number < end {
					s := servers[random.IntN(len(servers))]
					number++
					r.send(conns[s], &flow{load: load, from: s, to: c, bytes: int64(w.Size), read: true, done: next}, number-1)
				}
			}
			for range min(w.Depth, w.Reads) {
				next()
			}
		})
	}
	return nil
}
