// Package namespace calls functions in network namespaces.
package namespace

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// Do calls f on a thread in a namespace. Sockets, devices and programs that f opens or starts are
// in it too.
func Do(in netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(in); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
