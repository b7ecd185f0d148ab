package nvme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// serve is a target.
type serve struct {
	Namespace []namespace      `required:"" sep:"none" placeholder:"FILE" help:"A namespace: FILE[,size=SIZE][,block=BYTES][,ro], a file or a block device, or memory,size=SIZE; repeatable. size, such as 10G or 512M, creates a file that does not exist, and extends a shorter one. block is the size of logical blocks: 512 (the default) to 4096. ro: hosts cannot write."`
	NQN       string           `name:"nqn" required:"" placeholder:"NQN" help:"Name of the subsystem, such as nqn.2014-08.org.example:disk."`
	Host      []string         `sep:"none" placeholder:"NQN" help:"A host that may connect, by its NQN (on Linux in /etc/nvme/hostnqn); repeatable. Default: all hosts."`
	HostKey   []keyFile        `name:"host-key" sep:"none" placeholder:"NQN=FILE" help:"A host that may connect, and must authenticate itself (DH-HMAC-CHAP) with the key in FILE, which only its owner may read; repeatable. nvme gen-dhchap-key makes keys; Linux's nvme connect takes it as --dhchap-secret."`
	CtrlKey   []keyFile        `name:"controller-key" sep:"none" placeholder:"NQN=FILE" help:"The key with which the target authenticates itself to a host of --host-key that asks for it (--dhchap-ctrl-secret); repeatable."`
	Port      uint16           `short:"p" type:"port" default:"4420" help:"Port of the subsystem and the discovery service. Default: 4420."`
	Transport []node.Transport `default:"rocev2,iwarp" placeholder:"PROTOCOL" help:"Wire protocols: rocev2, iwarp. Default: both."`
	Depth     int              `default:"128" help:"Commands that a host may have outstanding on a queue: 16 to 1024. Default: 128."`
	Queues    int              `default:"64" help:"I/O queues of a host: 1 to 1024. Default: 64."`
	Force     bool             `help:"Also serve files that another program has locked, and block devices that are mounted or in use. Hosts and that program then destroy each other's data."`
	Memory    size             `default:"64M" placeholder:"SIZE" help:"Size of the buffer pool for data. Default: 64M."`

	running.Flags
}

// Help implements kong.HelpProvider.
func (*serve) Help() string {
	return `Hosts that connect are logged to stderr. An interrupt ends all connections; what hosts have written is then in the files.
If a disk cannot store what hosts have written, each flush of each host fails until the command is started again.

  softrnic nvme serve --namespace disk.img,size=10G --nqn nqn.2014-08.org.example:disk --link kernel:eth0      here
  nvme discover -t rdma -a 10.0.0.9 -s 4420                                                      on a Linux machine
  nvme connect -t rdma -a 10.0.0.9 -s 4420 -n nqn.2014-08.org.example:disk

Without --host and --host-key, all hosts may connect. --host compares names that hosts choose themselves. With --host-key a host
proves who it is; the data is not encrypted.`
}

// Validate implements kong's check after parsing.
func (c *serve) Validate() error {
	for _, name := range append([]string{c.NQN}, c.Host...) {
		if name == "" {
			continue // kong says what is missing
		}
		if err := nvme.CheckNQN(name); err != nil {
			return err
		}
	}
	return c.Memory.checkMemory()
}

// Run serves until ctx ends, and then returns nil.
func (c *serve) Run(ctx context.Context, e *cli.Env) (err error) {
	c.Log = min(c.Log, slog.LevelInfo)
	cfg := &target.Config{NQN: c.NQN, Hosts: c.Host, QueueDepth: c.Depth, IOQueues: c.Queues, Memory: int(c.Memory)}
	for _, t := range c.Transport {
		cfg.Transports = append(cfg.Transports, t.Transport)
	}
	for i := range c.Namespace {
		ns, closeIt, failed := c.Namespace[i].open(c.Force)
		if failed != nil {
			return fmt.Errorf("--namespace %w", failed)
		}
		defer func() { err = errors.Join(err, closeIt()) }()
		cfg.Namespaces = append(cfg.Namespaces, ns)
	}
	if cfg.Keys, err = readKeys(c.HostKey, c.CtrlKey); err != nil {
		return err
	}
	metrics := new(collector)
	c.Collector = metrics
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error {
		c.HintWithoutAddr(n)
		cfg.Logger = n.Log
		t, err := target.Listen(n.Dev, fmt.Sprintf(":%d", c.Port), cfg)
		if err != nil {
			return err
		}
		metrics.target.Store(t)
		c.Limits.Add("nvme", func() admission.Stats { return t.Stats().Admission })
		c.Limits.Reached("nvme", "memory", func() uint64 { return t.Stats().WaitedForMemory })
		c.Limits.Reached("nvme", "operations", func() uint64 { return t.Stats().WaitedForWorkers })
		n.Log.Info("serving", "addrs", n.Addrs(), "port", c.Port, "nqn", c.NQN, "namespaces", len(cfg.Namespaces))
		stop := context.AfterFunc(ctx, func() { _ = t.Close() })
		defer stop()
		return errors.Join(t.Wait(), t.Close())
	})
}
