// Package nfs is `softrnic nfs`: an NFS server over RDMA.
package nfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// Command has the commands for NFS.
type Command struct {
	Serve Serve `cmd:"" help:"Export a directory by NFS version 3 over RDMA, or another NFS server, for the mount command of Linux."`
}

// Serve is an NFS server.
type Serve struct {
	Directory string `arg:"" optional:"" type:"existingdir" help:"The directory to export. Every user of every client can access it, with the rights of the user who runs this command."`

	Forward   *server          `placeholder:"tcp:HOST:PORT" help:"Export what another NFS server exports, of any version, by passing the calls of clients to it over TCP from this machine's own network, and its calls to the clients."`
	Memory    int64            `placeholder:"BYTES" help:"Export an empty file system in memory instead of a directory, of at most this many bytes. Its content is lost when the command ends."`
	ReadOnly  bool             `help:"Export read-only: clients cannot change anything."`
	Port      uint16           `type:"port" default:"20049" help:"Port of NFS over RDMA. Default: 20049."`
	MountPort uint16           `type:"port" default:"20048" help:"TCP port of the node for the MOUNT protocol, by which clients request the export. Default: 20048."`
	Portmap   bool             `default:"true" negatable:"" help:"Also answer on TCP port 111 of the node, so that clients find the other ports automatically. With --link kernel, this is the machine's own port, which may be in use or need privileges; the command then continues without it."`
	Transport []node.Transport `default:"rocev2,iwarp" placeholder:"PROTOCOL" help:"Wire protocols: rocev2, iwarp. Default: both."`

	running.Flags
}

// Help implements kong.HelpProvider.
func (*Serve) Help() string {
	return `Clients follow symbolic links in their own file systems; the server never does. File locking is not supported: mount with nolock.

  softrnic nfs serve /srv/files --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24          here
  mount -t nfs -o rdma,vers=3,nolock 10.0.0.9:/ /mnt                              on the Linux machine

On the sockets of a machine, without root, the server cannot use port 111. Clients then need the port of the MOUNT protocol:

  softrnic nfs serve ~/files --link kernel:eth0                                   here
  mount -t nfs -o rdma,vers=3,nolock,mountport=20048 10.0.0.1:/ /mnt              on the Linux machine

In front of another NFS server, clients have its exports, its versions and its locks. To it, all clients are this machine:

  softrnic nfs serve --forward tcp:10.0.0.3:2049 --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24    here
  mount -t nfs -o rdma,vers=4.2 10.0.0.9:/ /mnt                                   on the Linux machine`
}

// Validate implements kong's check after parsing.
func (c *Serve) Validate() error {
	exports := 0
	for _, given := range []bool{c.Directory != "", c.Memory != 0, c.Forward != nil} {
		if given {
			exports++
		}
	}
	switch {
	case exports != 1:
		return errors.New("give one of a DIRECTORY, --memory and --forward")
	case c.Forward != nil && (c.ReadOnly || c.MountPort != defaultMountTCP):
		return errors.New("--forward cannot be used with --read-only or --mount-port: the server has the exports, and MOUNT")
	case c.Memory < 0:
		return fmt.Errorf("--memory %d: must be 1 or more", c.Memory)
	case c.Memory > math.MaxInt/2:
		return fmt.Errorf("--memory %d: this is more than a process of 32 bits can have", c.Memory)
	case c.Port == c.MountPort && slices.Contains(c.Transport, node.Transport{Transport: verbs.IWARP}):
		return fmt.Errorf("--port %d is also --mount-port: over iWARP it needs its own TCP port: use another", c.Port)
	}
	return nil
}

// open opens the store to export, and returns its path.
func (c *Serve) open() (store, string, error) {
	if c.Directory == "" {
		return newMemory(c.Memory), "/", nil
	}
	d, err := openDirectory(c.Directory)
	if err != nil {
		return nil, "", err
	}
	full, err := filepath.Abs(c.Directory)
	if err != nil {
		return nil, "", errors.Join(err, d.Close())
	}
	return d, filepath.ToSlash(full), nil
}

// Run serves until ctx ends, and then returns nil.
func (c *Serve) Run(ctx context.Context, e *cli.Env) error {
	c.Log = min(c.Log, slog.LevelInfo)
	metrics := newMetrics()
	c.Collector = metrics
	if c.Forward != nil {
		return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error { return c.forward(ctx, n, metrics) })
	}
	s, path, err := c.open()
	if err != nil {
		return err
	}
	ex := newExport(s, path, c.ReadOnly)
	err = c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error { return c.serve(ctx, n, ex, metrics) })
	return errors.Join(err, ex.close())
}

// listen listens for clients' connections over RDMA.
func (c *Serve) listen(n *node.Node, cfg *rpcrdma.Config, m *metrics) (*rpcrdma.Listener, error) {
	c.HintWithoutAddr(n)
	cfg.Binding = rpcrdma.NFS
	for _, t := range c.Transport {
		cfg.Transports = append(cfg.Transports, t.Transport)
	}
	l, err := rpcrdma.Listen(n.Dev, fmt.Sprintf(":%d", c.Port), cfg)
	if err != nil {
		return nil, fmt.Errorf("--port %d: %w", c.Port, err)
	}
	m.listener.Store(l)
	c.Limits.Add("nfs", func() admission.Stats { return l.Stats().Admission })
	c.Limits.Reached("nfs", "memory", func() uint64 { return l.Stats().Waited })
	return l, nil
}

// forward serves another server's exports.
func (c *Serve) forward(ctx context.Context, n *node.Node, m *metrics) error {
	l, err := c.listen(n, &rpcrdma.Config{MaxMessage: maxRecord, BackwardCredits: backwardCredits}, m)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	f := &forwarder{address: c.Forward.hostPort, log: n.Log}
	n.Log.Info("serving", "addrs", n.Addrs(), "port", c.Port, "forward", c.Forward.hostPort)
	err = errors.Join(l.ServeConns(f.begin), l.Close())
	f.upstreams.Wait()
	n.Log.Info("stopped")
	return err
}

func (c *Serve) serve(ctx context.Context, n *node.Node, ex *export, m *metrics) error {
	l, err := c.listen(n, new(rpcrdma.Config), m)
	if err != nil {
		return err
	}
	mount, err := n.ListenStream(netip.AddrPortFrom(netip.Addr{}, c.MountPort))
	if err != nil {
		return errors.Join(fmt.Errorf("--mount-port %d: %w", c.MountPort, err), l.Close())
	}
	c.Limits.Reached("nfs", "calls", ex.workers.waited.Load)
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{}, 3)
	start := func(serve func() error) {
		go func() {
			cancel(serve())
			ended <- struct{}{}
		}()
	}
	services := 2
	if c.Portmap {
		ports, err := n.ListenStream(netip.AddrPortFrom(netip.Addr{}, portmapPort))
		if err != nil {
			n.Log.Warn(fmt.Sprintf("port 111 cannot be used: clients must mount with mountport=%d", c.MountPort), "error", err)
		} else {
			services++
			start(func() error {
				return serveTCP(serving, ports, c.Limits.Gate("portmap", maxStreams), n.Log, portmap{c.MountPort})
			})
		}
	}
	n.Log.Info("serving", "addrs", n.Addrs(), "port", c.Port, "mountport", c.MountPort, "export", ex.path, "readonly", ex.readOnly)
	start(func() error { return l.Serve(ex) })
	start(func() error {
		return serveTCP(serving, mount, c.Limits.Gate("mount", maxStreams), n.Log, onlyMount(ex))
	})
	<-serving.Done()
	err = l.Close()
	for range services {
		<-ended
	}
	n.Log.Info("stopped")
	if ctx.Err() == nil { // it has ended by itself
		err = errors.Join(context.Cause(serving), err)
	}
	return err
}
