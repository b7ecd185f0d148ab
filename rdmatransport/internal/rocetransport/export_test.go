package rocetransport

import "github.com/softrnic/softrnic/verbs"

// SetPersist replaces verbs.RegisteredMR.Persist by f until restore is called, for files on slow
// devices.
func SetPersist(f func(mr *verbs.RegisteredMR, b []byte) error) (restore func()) {
	was := persist
	persist = f
	return func() { persist = was }
}

// MaxFlushes is the largest number of concurrent calls.
const MaxFlushes = maxFlushes
