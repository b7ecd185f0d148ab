// Package namespace calls functions in network namespaces.
package namespace

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// Do calls f on a thread in a namespace. Sockets, devices and programs that f opens or starts are
// in it too. The thread leaves the namespace afterwards. This must not be left to the end of the
// goroutine: the process's main thread would stay there, and the process would be found among those
// of the namespace, which are killed with it.
func Do(in netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	outside, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("the thread's network namespace: %w", err)
	}
	defer outside.Close()
	if err := netns.Set(in); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	err = f()
	if back := netns.Set(outside); back != nil {
		// The thread stays locked: no other goroutine may get it.
		return errors.Join(err, fmt.Errorf("leave a network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
