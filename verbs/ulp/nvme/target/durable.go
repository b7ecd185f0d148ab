package target

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// durability makes the writes to a namespace durable. All replies that promise this come from here:
// those of Flush, of writes with ForceUnitAccess or without a write cache, of Set Features that
// disables the cache, and CSTS after a shutdown.
//
// The rule is: after a Sync that has failed, each such reply is an error, to every host, as long as
// the target has this backend. A system reports that it could not write pages once, and then takes
// them for written (Linux does so for each open file). A later Sync that succeeds thus says nothing
// about earlier writes, and which of them are lost is not known. QEMU and PostgreSQL have the same
// rule. The status has DoNotRetry, or a host would repeat a Flush until it succeeds.
//
// One Sync runs at a time. Of two at once, Linux reports the error to one of them. Those who arrive
// meanwhile share the next one, so that any number of them needs one thread.
type durability struct {
	s          Syncer // nil: writes are durable, or there are none
	log        *slog.Logger
	clock      verbs.Clock
	goroutines *wakeup.Group

	mu      sync.Mutex // no other lock is taken meanwhile
	running bool
	waiting []func(nvme.Status)
	lost    nvme.Status // not Success: data may be lost
}

// sync calls done, on any goroutine, when all completed writes are durable or one of them may be
// lost.
func (d *durability) sync(done func(nvme.Status)) {
	if d.s == nil {
		done(nvme.Success)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, done)
	if !d.running {
		d.running = true
		d.goroutines.Go(d.clock, d.run)
	}
}

// run calls Sync as long as somebody waits.
func (d *durability) run() {
	for {
		d.mu.Lock()
		waiting, status := d.waiting, d.lost
		d.waiting = nil
		d.running = len(waiting) > 0
		d.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		if status == nvme.Success {
			if err := d.s.Sync(); err != nil {
				d.log.Error("data that hosts have written may be lost: until the target is started again, no flush succeeds", "error", err)
				status = writeStatus(err)
				d.mu.Lock()
				d.lost = status
				d.mu.Unlock()
			}
		}
		for _, done := range waiting {
			done(status)
		}
	}
}

// hasLost reports whether data may be lost.
func (d *durability) hasLost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost != nvme.Success
}

// sync is that of all namespaces. The status is that of one that has lost data, if there is one.
func (t *Target) sync(done func(nvme.Status)) {
	var left atomic.Int32
	var failed atomic.Uint32
	left.Store(int32(len(t.namespaces)))
	for _, ns := range t.namespaces {
		ns.durability.sync(func(s nvme.Status) {
			if s != nvme.Success {
				failed.Store(uint32(s))
			}
			if left.Add(-1) == 0 {
				done(nvme.Status(failed.Load()))
			}
		})
	}
}
