package ethswitch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/stream"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	fabricrun "github.com/softrnic/softrnic/cmd/softrnic/internal/fabric"
)

// Command is an Ethernet switch.
type Command struct {
	Port    []node.LinkSpec `arg:"" sep:"none" help:"stream:PATH,listen (listen on a unix socket, or on tcp:HOST:PORT; each connection is a port), stream:PATH (a connection to another switch), shm[:NAME] (memory shared with nodes of that --link) or tap:NAME[,bridge=BRIDGE]."`
	MTU     int             `name:"mtu" type:"mtu" placeholder:"BYTES" help:"MTU of shm and of the TAP interfaces that the switch creates, and the largest packet on streams. Default: the kernel's for TAP, 4200 for shm, no limit for streams."`
	Fabric  string          `type:"path" placeholder:"FILE" help:"Pass frames through the network that this file describes (see softrnic fabric run): rates, delays, queues, marks and pauses, in real time. Each port takes the place of the next host."`
	Metrics string          `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at http://HOST:PORT/metrics: the packets that each port has received, sent and dropped."`
	Log     slog.Level      `name:"log-level" default:"info" placeholder:"LEVEL" help:"Log messages of at least this level to stderr: debug, info, warn or error. Default: info."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It learns the addresses behind each port, and runs until interrupted.

  softrnic switch stream:/tmp/lan,listen                                  here
  softrnic serve --link stream:/tmp/lan --addr 10.0.0.9/24                a node
  softrnic rping -c -a 10.0.0.9 --link stream:/tmp/lan --addr 10.0.0.8/24 another
  qemu-system-x86_64 ... -device virtio-net-pci,netdev=net,mac=52:54:00:00:00:07 \
     -netdev stream,id=net,server=off,addr.type=unix,addr.path=/tmp/lan   a virtual machine; each needs its own MAC address
  softrnic switch --fabric lab.toml stream:/tmp/lan,listen                a congested network: its hosts are the ports, in turn`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	for i := range c.Port {
		if err := c.Port[i].CheckPort(); err != nil {
			return err
		}
	}
	return nil
}

// Run forwards frames until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) (err error) {
	log := e.Log(c.Log)
	network, err := c.network(log)
	if err != nil {
		return err
	}
	s := New(log, network)
	stop, err := running.ServeMetrics(c.Metrics, s, log)
	if err != nil {
		return err
	}
	defer stop()
	var accepting sync.WaitGroup
	var listeners []*stream.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
		accepting.Wait()
		err = errors.Join(err, s.Close())
	}()
	for i := range c.Port {
		spec := &c.Port[i]
		address, listens := spec.Listens()
		if !listens {
			l, err := spec.OpenPort(c.MTU)
			if err == nil {
				err = s.Add(l)
			}
			if err != nil {
				return err
			}
			continue
		}
		l, err := stream.Listen(address, &stream.Config{MTU: cmp.Or(c.MTU, link.MaxSuperframe)})
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		accepting.Go(func() { accept(s, l, log) })
		log.Info("listening", "address", address)
	}
	<-ctx.Done()
	return nil
}

// networkMTU is that of a network without --mtu: jumbo frames.
const networkMTU = 9216

// network returns the simulated network, or nil.
func (c *Command) network(log *slog.Logger) (*fabric.Fabric, error) {
	if c.Fabric == "" {
		return nil, nil
	}
	cfg, unused, err := fabricrun.LoadNetwork(c.Fabric, cmp.Or(c.MTU, networkMTU))
	if err != nil {
		return nil, err
	}
	for _, table := range unused {
		log.Warn("a switch does not use this table", "file", c.Fabric, "table", table)
	}
	return fabric.New(cfg)
}

// acceptPause is the pause after a failed accept, such as when all descriptors or ports are in use.
const acceptPause = 100 * time.Millisecond

// accept adds each connection as a port until the listener is closed.
func accept(s *Switch, ln *stream.Listener, log *slog.Logger) {
	for {
		l, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			err = s.Add(l)
		}
		if err != nil {
			log.Warn("a connection could not become a port", "address", ln.Addr(), "error", err)
			time.Sleep(acceptPause)
		}
	}
}
