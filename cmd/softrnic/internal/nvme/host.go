package nvme

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// remote has the flags of commands that are hosts.
type remote struct {
	Address   string         `arg:"" help:"Address or name of the target, and its port unless that is 4420: 10.0.0.9, 10.0.0.9:4421 or [fd00::9]:4421."`
	HostNQN   string         `name:"host-nqn" placeholder:"NQN" help:"Name of this host. Default: made from the name of the machine."`
	Transport node.Transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 or iwarp. Default: rocev2."`

	running.Flags
}

// addr returns the address with its port.
func (r *remote) addr() string {
	if _, _, err := net.SplitHostPort(r.Address); err == nil {
		return r.Address
	}
	return net.JoinHostPort(strings.Trim(r.Address, "[]"), strconv.Itoa(nvme.Port))
}

func (r *remote) config() *host.Config {
	return &host.Config{HostNQN: r.HostNQN, Transport: r.Transport.Transport}
}

// subsystem has the flags of commands that use a subsystem.
type subsystem struct {
	remote
	NQN string `name:"nqn" placeholder:"NQN" help:"Name of the subsystem. Default: the only one that the target offers."`
}

// use calls a function with a controller of the subsystem.
func (s *subsystem) use(ctx context.Context, e *cli.Env, cfg *host.Config, do func(context.Context, *host.Controller) error) error {
	return s.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) (err error) {
		cfg.NQN, cfg.Logger = s.NQN, n.Log
		if cfg.NQN == "" {
			if cfg.NQN, err = s.only(ctx, n); err != nil {
				return err
			}
		}
		c, err := host.Dial(ctx, n.Dev, s.addr(), cfg)
		if err != nil {
			return err
		}
		return errors.Join(do(ctx, c), c.Close())
	})
}

// only returns the name of the only subsystem of the target.
func (s *subsystem) only(ctx context.Context, n *node.Node) (string, error) {
	entries, err := host.Discover(ctx, n.Dev, s.addr(), s.config())
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if e.Subtype == nvme.SubsystemNVM && e.Transport == nvme.TransportRDMA {
			names = append(names, e.SubsystemNQN)
		}
	}
	if len(names) != 1 {
		return "", cli.Usagef("the target offers %d subsystems: select one with --nqn: %s", len(names), strings.Join(names, ", "))
	}
	return names[0], nil
}

// volume has the flags of commands that use a namespace.
type volume struct {
	subsystem
	NSID uint32 `name:"nsid" default:"1" help:"The namespace. Default: 1."`
}

// open calls a function with a namespace.
func (v *volume) open(ctx context.Context, e *cli.Env, cfg *host.Config,
	do func(context.Context, *host.Controller, *host.Namespace) error) error {
	return v.use(ctx, e, cfg, func(ctx context.Context, c *host.Controller) error {
		ns, err := c.Namespace(ctx, v.NSID)
		if err != nil {
			return err
		}
		return do(ctx, c, ns)
	})
}

// discover lists subsystems.
type discover struct {
	remote
	JSON bool `name:"json" help:"Print JSON."`
}

// entry is a subsystem in JSON.
type entry struct {
	NQN       string `json:"nqn"`
	Address   string `json:"address"`
	Type      string `json:"type"`
	Transport string `json:"transport"`
}

var (
	subtypes   = map[uint8]string{nvme.SubsystemDiscovery: "referral", nvme.SubsystemNVM: "nvm", nvme.SubsystemCurrent: "discovery"}
	transports = map[uint8]string{nvme.TransportRDMA: "rdma", 2: "fc", 3: "tcp", 254: "loop"}
)

// Run lists what the target offers.
func (d *discover) Run(ctx context.Context, e *cli.Env) error {
	return d.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error {
		found, err := host.Discover(ctx, n.Dev, d.addr(), d.config())
		if err != nil {
			return err
		}
		list := []entry{}
		for _, f := range found {
			out := entry{NQN: f.SubsystemNQN, Type: subtypes[f.Subtype], Transport: transports[f.Transport]}
			if f.Addr.IsValid() {
				out.Address = f.Addr.String()
			}
			list = append(list, out)
		}
		if d.JSON {
			return e.WriteJSON(list)
		}
		w := tabwriter.NewWriter(e.Text(), 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "type\ttransport\taddress\tNQN")
		for _, l := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Type, l.Transport, l.Address, l.NQN)
		}
		return w.Flush()
	})
}

// identify shows a controller and its namespaces.
type identify struct {
	subsystem
	JSON bool `name:"json" help:"Print JSON."`
}

// controller is a controller in JSON.
type controller struct {
	NQN         string   `json:"nqn"`
	Controller  uint16   `json:"controller"`
	Model       string   `json:"model"`
	Serial      string   `json:"serial"`
	Firmware    string   `json:"firmware"`
	Version     string   `json:"version"`
	MaxTransfer int      `json:"max_transfer_bytes"`
	Namespaces  []device `json:"namespaces"`
}

// device is a namespace in JSON.
type device struct {
	NSID      uint32 `json:"nsid"`
	Size      int64  `json:"size_bytes"`
	BlockSize int    `json:"block_bytes"`
	ReadOnly  bool   `json:"read_only"`
	UUID      string `json:"uuid,omitempty"`
}

// Run shows the subsystem.
func (i *identify) Run(ctx context.Context, e *cli.Env) error {
	cfg := i.config()
	cfg.IOQueues = 1
	return i.use(ctx, e, cfg, func(ctx context.Context, c *host.Controller) error {
		id := c.Identity()
		out := controller{NQN: id.SubsystemNQN, Controller: c.ID(), Model: id.Model, Serial: id.Serial, Firmware: id.Firmware,
			Version: fmt.Sprintf("%d.%d", id.Version>>16, id.Version>>8&0xff), MaxTransfer: c.MaxTransfer(), Namespaces: []device{}}
		list, err := c.Namespaces(ctx)
		if err != nil {
			return err
		}
		for _, nsid := range list {
			ns, err := c.Namespace(ctx, nsid)
			if err != nil {
				return err
			}
			d := device{NSID: nsid, Size: ns.Size(), BlockSize: ns.BlockSize(), ReadOnly: ns.ReadOnly()}
			if ids, err := ns.Descriptors(ctx); err == nil && ids.UUID != [16]byte{} { // a target need not have any
				d.UUID = uuid(ids.UUID)
			}
			out.Namespaces = append(out.Namespaces, d)
		}
		if i.JSON {
			return e.WriteJSON(out)
		}
		w := tabwriter.NewWriter(e.Text(), 0, 8, 2, ' ', 0)
		fmt.Fprintf(w, "NQN\t%s\nmodel\t%s\nserial\t%s\nfirmware\t%s\nNVMe version\t%s\ncontroller\t%d\n", out.NQN, out.Model, out.Serial,
			out.Firmware, out.Version, out.Controller)
		fmt.Fprintf(w, "longest command\t%d bytes\n", out.MaxTransfer)
		for _, d := range out.Namespaces {
			access := ""
			if d.ReadOnly {
				access = ", read-only"
			}
			fmt.Fprintf(w, "namespace %d\t%d bytes in blocks of %d%s\t%s\n", d.NSID, d.Size, d.BlockSize, access, d.UUID)
		}
		return w.Flush()
	})
}

func uuid(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
