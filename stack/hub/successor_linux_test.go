package hub_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

// refuser counts refusals, leases, dead clients, and calls of SendDue.
type refuser struct {
	numbered
	leased, refused, died, looked *atomic.Int64
}

func (r refuser) Died(stack.Numbers) { r.died.Add(1) }

func (r refuser) SendDue(int64, hub.SendFunc) (again int64) {
	r.looked.Add(1)
	return 0
}

func (r refuser) Leased(stack.Numbers)                         { r.leased.Add(1) }
func (r refuser) Refuse([]byte, *stack.Datagram, hub.SendFunc) { r.refused.Add(1) }

// TestSuccessorWaits checks that a hub refuses nothing before all clients of its predecessor have
// connected or are declared dead. Living processes are not declared dead.
func TestSuccessorWaits(t *testing.T) {
	const addr = "127.31.0.9"
	t.Cleanup(hub.SetSettleTime(time.Nanosecond))
	dir, s := directory(t), &starter{t: t}
	if err := s.start(dir); err != nil {
		t.Fatal(err)
	}
	e := join(t, dir, addr, func(string) error { return nil }) // it waits
	late, dead := spawn(t, dir, addr), spawn(t, dir, addr)
	for _, p := range []*process{late, dead} {
		stop(t, p.Process)
	}
	s.kill() // the next hub runs in this process
	classifier := refuser{leased: new(atomic.Int64), refused: new(atomic.Int64), died: new(atomic.Int64), looked: new(atomic.Int64)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var err error
		for {
			cfg := hub.Config{Directory: dir, Classifier: classifier, Idle: 10 * time.Millisecond, Reclaim: time.Millisecond}
			err = hub.Serve(ctx, cfg) // it has clients
			if err == nil || ctx.Err() != nil {
				break
			}
			time.Sleep(time.Millisecond) // the other hub has not ended yet
		}
		ended <- err
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await(t, "the client is back", func() bool { return e.nic.State() == stack.LinkUp && classifier.leased.Load() == 4 })
	ask := message(hub.TargetService, 77, 100, 0)
	before := classifier.looked.Load()
	await(t, "the hub has checked whether it may refuse", func() bool { return classifier.looked.Load() >= before+30 })
	for range 10 {
		e.send(addr, addr, ask)
	}
	e.send(addr, addr, message(hub.TargetQPN, e.qpn(), 100, 0))
	e.next()
	if n := classifier.refused.Load(); n != 0 {
		t.Errorf("%d requests are refused, though a client is missing", n)
	}
	if n := classifier.died.Load(); n != 0 {
		t.Errorf("%d stopped clients are declared dead", n)
	}
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait()
	await(t, "the dead client is declared dead", func() bool { return classifier.died.Load() == 1 })
	if err := late.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "the stopped client is back", func() bool { return e.echo(addr, late, 100, 100*time.Millisecond) })
	await(t, "unserved requests are refused", func() bool {
		e.send(addr, addr, ask)
		return classifier.refused.Load() > 0
	})
}
