package node

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack/framed"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/kernel/hub"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// openKernel makes n a host on the machine's own sockets.
func (f *Flags) openKernel(e *cli.Env, n *Node) error {
	opts := []kernel.Option{kernel.Logger(n.Log)}
	if f.Link.name != "" {
		opts = append(opts, kernel.Interface(f.Link.name))
	}
	for _, a := range f.Addr {
		opts = append(opts, kernel.Addr(a.Addr().String()))
	}
	share := func() {
		opts = append(opts, kernel.Shared(kernel.Sharing{Start: func(directory string) error { return startHub(e.Command, directory) }, Log: n.Log}))
	}
	switch {
	case f.Describe:
		opts = append(opts, kernel.Unopened())
	case f.Shared:
		share()
	}
	host, err := kernel.New(opts...)
	if !f.Shared && errors.Is(err, syscall.EADDRINUSE) && hub.Running("") {
		n.Log.Info("a hub has the addresses: the node shares them")
		share()
		host, err = kernel.New(opts...)
	}
	if err != nil {
		return fmt.Errorf("--link kernel: %w", err)
	}
	if nic := host.NICs()[0]; f.MTU != 0 && nic.MTU() != f.MTU {
		return errors.Join(fmt.Errorf("--mtu %d: %s has MTU %d: set it there, or leave --mtu out", f.MTU, nic.Name(), nic.MTU()), host.Close())
	}
	n.Host = host
	if !e.Counted && f.Capture == "" && f.Impair == nil {
		return nil
	}
	var framing []framed.Option
	if f.Impair != nil {
		framing = append(framing, framed.Singly())
	}
	wrapped, err := framed.New(host, func(l link.Link) (link.Link, error) { return f.wrap(e, n, l) }, framing...)
	if err != nil {
		return err
	}
	n.Host = wrapped
	return nil
}
