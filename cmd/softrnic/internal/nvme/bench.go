package nvme

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// bench measures commands.
type bench struct {
	volume
	Op       string        `enum:"randread,randwrite,read,write" default:"randread" placeholder:"OP" help:"What to measure: randread, randwrite, read or write (both in sequence). Writes overwrite the namespace with zeros. Default: randread."`
	BS       size          `name:"bs" default:"4K" placeholder:"SIZE" help:"Bytes of a command, a multiple of the block size. Default: 4K."`
	Depth    int           `short:"t" default:"32" help:"Commands outstanding on each queue: 1 to 1023. Default: 32."`
	Queues   int           `short:"q" default:"1" help:"I/O queues, each with a goroutine: 1 to 64. Default: 1."`
	Duration time.Duration `short:"D" default:"5s" placeholder:"TIME" help:"How long to measure. Default: 5s."`
	Warmup   time.Duration `default:"100ms" placeholder:"TIME" help:"How long to run before the measurement. Default: 100ms."`
	Span     size          `placeholder:"SIZE" help:"Use only the first part of the namespace. Default: all."`
	JSON     bool          `name:"json" help:"Print JSON."`
}

// Validate implements kong's check after parsing.
func (b *bench) Validate() error {
	switch {
	case b.Depth < 1 || b.Depth > 1023:
		return fmt.Errorf("--depth %d: must be 1 to 1023", b.Depth)
	case b.Queues < 1 || b.Queues > 64:
		return fmt.Errorf("--queues %d: must be 1 to 64", b.Queues)
	case b.Duration <= 0:
		return fmt.Errorf("--duration %v: must be more than 0", b.Duration)
	case b.Warmup < 0:
		return fmt.Errorf("--warmup %v: must be at least 0", b.Warmup)
	}
	return nil
}

// result is a measurement in JSON.
type result struct {
	Op        string             `json:"op"`
	BS        int64              `json:"block_bytes"`
	Depth     int                `json:"depth"`
	Queues    int                `json:"queues"`
	Seconds   float64            `json:"seconds"`
	Commands  int64              `json:"commands"`
	IOPS      float64            `json:"iops"`
	Bandwidth float64            `json:"bytes_per_second"`
	Latency   map[string]float64 `json:"latency_us"`
}

var percentiles = []struct {
	name string
	at   float64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}, {"p99.9", 99.9}, {"max", 100}}

// Run measures.
func (b *bench) Run(ctx context.Context, e *cli.Env) error {
	cfg := b.config()
	cfg.IOQueues = 1
	return b.open(ctx, e, cfg, func(ctx context.Context, c *host.Controller, ns *host.Namespace) error {
		span := ns.Size()
		if b.Span > 0 {
			span = min(span, int64(b.Span))
		}
		n := int64(b.BS)
		switch {
		case n%int64(ns.BlockSize()) != 0 || n > int64(c.MaxTransfer()):
			return cli.Usagef("--bs %d: must be a multiple of the block size of %d, and %d at most", n, ns.BlockSize(), c.MaxTransfer())
		case span < n:
			return cli.Usagef("--bs %d: the namespace has %d bytes, or --span", n, span)
		}
		r, err := b.measure(ctx, c, ns, span/n)
		if err != nil {
			return err
		}
		if b.JSON {
			return e.WriteJSON(r)
		}
		w := tabwriter.NewWriter(e.Text(), 0, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(e.Text(), "%s of %d bytes, %d queues with %d commands each, %.1f s\n", r.Op, r.BS, r.Queues, r.Depth, r.Seconds)
		fmt.Fprint(w, "IOPS\tMB/s\t")
		for _, p := range percentiles {
			fmt.Fprintf(w, "%s [µs]\t", p.name)
		}
		fmt.Fprintf(w, "\n%.0f\t%.1f\t", r.IOPS, r.Bandwidth/1e6)
		for _, p := range percentiles {
			fmt.Fprintf(w, "%.1f\t", r.Latency[p.name])
		}
		fmt.Fprintln(w)
		return w.Flush()
	})
}

// measure runs all queues.
func (b *bench) measure(ctx context.Context, c *host.Controller, ns *host.Namespace, blocks int64) (*result, error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	sum := newHistogram()
	var failed error
	depth := 0
	queues := make([]*host.Queue, b.Queues)
	for i := range queues {
		q, err := c.OpenQueue(ctx, b.Depth)
		if err != nil {
			return nil, err
		}
		defer func() { _ = q.Close() }()
		queues[i], depth = q, q.Depth()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now().Add(b.Warmup)
	for i, q := range queues {
		all.Go(func() {
			h, err := b.load(ctx, c, q, ns, blocks, uint64(i), began)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, err)
				cancel() // the others
				return
			}
			sum.Merge(h)
		})
	}
	all.Wait()
	if failed != nil {
		return nil, failed
	}
	seconds := time.Since(began).Seconds()
	commands := sum.TotalCount()
	r := &result{Op: b.Op, BS: int64(b.BS), Depth: depth, Queues: b.Queues, Seconds: seconds, Commands: commands,
		IOPS: float64(commands) / seconds, Bandwidth: float64(commands) * float64(b.BS) / seconds, Latency: map[string]float64{}}
	for _, p := range percentiles {
		r.Latency[p.name] = float64(sum.ValueAtPercentile(p.at)) / 1e3
	}
	return r, nil
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

// load keeps the commands of one queue outstanding, until the measurement that begins at a time is
// over. It returns the latencies of those posted since then, in nanoseconds.
func (b *bench) load(ctx context.Context, c *host.Controller, q *host.Queue, ns *host.Namespace, blocks int64, seed uint64,
	began time.Time) (h *hdrhistogram.Histogram, err error) {
	end := began.Add(b.Duration)
	n := int(b.BS)
	m, err := c.Register(make([]byte, q.Depth()*n))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, q.Close(), m.Close()) }()
	h = newHistogram()
	random := rand.New(rand.NewPCG(seed, 1))
	opcode := nvme.Read
	if b.Op == "write" || b.Op == "randwrite" {
		opcode = nvme.Write
	}
	next := int64(seed) * (blocks / int64(b.Queues)) // of a sequence
	ops, posted := make([]host.Op, q.Depth()), make([]time.Time, q.Depth())
	post := func(op *host.Op) error {
		block := next % blocks
		next++
		if b.Op == "randread" || b.Op == "randwrite" {
			block = random.Int64N(blocks)
		}
		op.Offset = block * int64(n)
		posted[op.ID] = time.Now()
		return q.Post(op)
	}
	outstanding := 0
	for i := range ops {
		ops[i] = host.Op{Opcode: opcode, Namespace: ns, Len: n, Memory: m, At: i * n, ID: uint64(i)}
		if err := post(&ops[i]); err != nil {
			return nil, err
		}
		outstanding++
	}
	var waiting []*host.Op // for room in the queue
	done := make([]*host.Op, len(ops))
	for outstanding > 0 {
		k, err := q.Wait(ctx, done)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		outstanding -= k
		for _, op := range done[:k] {
			if op.Err != nil {
				return nil, op.Err
			}
			if !posted[op.ID].Before(began) {
				_ = h.RecordValue(min(max(int64(now.Sub(posted[op.ID])), 1), int64(time.Minute))) // the value is in range
			}
		}
		waiting = append(waiting, done[:k]...)
		for now.Before(end) && len(waiting) > 0 {
			err := post(waiting[len(waiting)-1])
			if errors.Is(err, verbs.ErrQueueFull) && outstanding > 0 {
				break
			}
			if err != nil {
				return nil, err
			}
			waiting = waiting[:len(waiting)-1]
			outstanding++
		}
	}
	return h, nil
}
