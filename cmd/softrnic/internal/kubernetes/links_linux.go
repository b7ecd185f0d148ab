package kubernetes

import (
	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link/rtnetlink"
)

// linkChanges returns a channel that receives when an interface of this network namespace has
// changed, and a function that ends that.
func linkChanges() (<-chan struct{}, func(), error) {
	l, err := rtnetlink.Listen()
	if err != nil {
		return nil, nil, err
	}
	changes := make(chan struct{}, 1)
	notify := func() {
		select {
		case changes <- struct{}{}:
		default: // one is pending
		}
	}
	go l.Run(rtnetlink.Events{Link: func(*netlink.LinkAttrs, bool) { notify() }, Addrs: func(int) {}, Missed: notify})
	return changes, func() { l.Close() }, nil
}
