package ifstate

import (
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestMissed checks that a watcher recovers after the kernel has dropped notifications: it reads
// the present state, and follows later changes.
func TestMissed(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(v0 netlink.Link) error // the last change, whose notification is lost
		is   link.State
		mtu  int // 0: any
	}{
		{"up", func(v0 netlink.Link) error { return netlink.LinkSetMTU(v0, 1450) }, link.Up, 1450},
		{"disabled", netlink.LinkSetDown, link.Disabled, 1401},
		{"removed", netlink.LinkDel, link.Removed, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			interfaces.Namespace(t)
			interfaces.Veth(t, 1500)
			v0 := interfaces.ByName(t, "v0")
			w, err := New("v0", false)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			held, letGo, notified := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1<<16)
			hold := sync.OnceFunc(func() {
				close(held)
				<-letGo
			})
			w.Watch(func() {
				hold()
				notified <- struct{}{}
			})
			for i := range 3000 {
				if err := netlink.LinkSetMTU(v0, 1400+i%2); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					<-held
				}
			}
			if err := c.then(v0); err != nil {
				t.Fatal(err)
			}
			close(letGo)
			within := time.After(20 * time.Second)
			await := func(is link.State, mtu int) {
				t.Helper()
				for w.State() != is || w.MTU() != mtu && mtu != 0 {
					select {
					case <-notified:
					case <-within:
						t.Fatalf("the interface is %v with MTU %d, want %v and %d", w.State(), w.MTU(), is, mtu)
					}
				}
			}
			await(c.is, c.mtu)
			if c.is == link.Disabled {
				if err := netlink.LinkSetUp(v0); err != nil {
					t.Fatal(err)
				}
				await(link.Up, c.mtu)
			}
		})
	}
}
