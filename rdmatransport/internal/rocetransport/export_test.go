package rocetransport

import (
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// SetLate makes the QPs of the engine at an interface assume that its timers were late. In a test's
// bubble they are not.
func SetLate(nic stack.NIC, late time.Duration) {
	e := enginePortOf(nic).e
	e.env.Late = new(atomic.Int64)
	e.env.Late.Store(int64(late))
}

// SetPersist replaces verbs.RegisteredMR.Persist by f until restore is called, for files on slow
// devices.
func SetPersist(f func(mr *verbs.RegisteredMR, b []byte) error) (restore func()) {
	was := persist
	persist = f
	return func() { persist = was }
}

// MaxFlushes is the largest number of concurrent calls.
const MaxFlushes = maxFlushes
