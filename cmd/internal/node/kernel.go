package node

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/softrnic/softrnic/cmd/internal/framed"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// openKernel sets n.Host to a host on the machine's own sockets.
func (f *Flags) openKernel(e *cli.Env, n *Node) error {
	if f.Link.name == allInterfaces {
		return cli.Usagef("--link kernel:%s: a node is on one interface: use its name. softrnic run has devices on each, and devinfo "+
			"shows them", allInterfaces)
	}
	cfg := &kernel.Config{Interface: f.Link.name, Logger: n.Log}
	for _, a := range f.Addr {
		cfg.Addrs = append(cfg.Addrs, a.Addr().String())
	}
	sharing := &kernel.Sharing{Start: func(directory string) error { return startHub(e.Command, directory) }, Logger: n.Log}
	switch {
	case f.Describe:
		cfg.Unopened = true
	case f.Shared:
		cfg.Sharing = sharing
	}
	host, err := kernel.New(cfg)
	if !f.Shared && errors.Is(err, syscall.EADDRINUSE) && hub.Running("") {
		n.Log.Info("a hub has the addresses: the node shares them")
		cfg.Sharing = sharing
		host, err = kernel.New(cfg)
	}
	if err != nil {
		return fmt.Errorf("--link kernel: %w", err)
	}
	if nic := host.NICs()[0]; f.MTU != 0 && nic.MTU() != f.MTU {
		return errors.Join(fmt.Errorf("--mtu %d: %s has MTU %d: set it there, or leave --mtu out", f.MTU, nic.Name(), nic.MTU()),
			host.Close())
	}
	n.Host = host
	if f.Link.name == "" {
		n.why = host.Why()
	}
	if !e.Counted && f.Capture == "" && f.Impair == nil && f.Fault == nil {
		return nil
	}
	var framing []framed.Option
	if f.Impair != nil {
		framing = append(framing, framed.SingleDatagramFrames())
	}
	wrapped, err := framed.New(host, func(l link.Link) (link.Link, error) { return f.wrap(e, n, l) }, framing...)
	if err != nil {
		return err
	}
	n.Host = wrapped
	return nil
}

// allInterfaces stands for all interfaces of the machine with a global address.
const allInterfaces = "all"

// EachInterface returns the links that a link stands for. For kernel:all there is one for each
// interface, with that of the default route first.
func EachInterface(link string) ([]string, error) {
	if link != "kernel:"+allInterfaces {
		return []string{link}, nil
	}
	names, err := kernel.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link, err)
	}
	for i := range names {
		names[i] = "kernel:" + names[i]
	}
	return names, nil
}

// Each returns the flags of the nodes that f stands for: see EachInterface.
func (f *Flags) Each() (all []Flags, err error) {
	if f.Medium() != "kernel" || f.Link.name != allInterfaces {
		return []Flags{*f}, nil
	}
	if len(f.Addr) > 0 {
		return nil, cli.Usagef("--addr %v: --link kernel:%s has all addresses of each interface: leave it out", f.Addr[0].Addr(),
			allInterfaces)
	}
	links, err := EachInterface("kernel:" + allInterfaces)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		one := *f
		if err := one.Link.UnmarshalText([]byte(l)); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}
