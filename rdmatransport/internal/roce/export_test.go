package roce

import "github.com/softrnic/softrnic/verbs"

// SetPersist has f called in place of verbs.RegisteredMR.Persist, until restore is: for files on devices that
// take their time.
func SetPersist(f func(mr *verbs.RegisteredMR, b []byte) error) (restore func()) {
	was := persist
	persist = f
	return func() { persist = was }
}

// MaxFlushes is how many calls there are at once.
const MaxFlushes = maxFlushes
