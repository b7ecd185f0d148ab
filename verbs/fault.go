package verbs

import (
	"runtime"
	"runtime/debug"
)

// Guard runs f, which copies from or to memory that may fault, and tells whether it came to its end. Providers touch the
// memory of regions that MayFault with it.
func Guard(f func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if e := recover(); e != nil {
			if _, fault := e.(runtime.Error); !fault {
				panic(e)
			}
			ok = false
		}
	}()
	f()
	return true
}
