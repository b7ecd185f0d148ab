// Package mckey is `softrnic mckey`: it sends datagrams to a multicast group or receives them, as
// librdmacm's mckey does.
package mckey

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// Command is mckey, with its options, defaults, and bytes on the wire.
type Command struct {
	Group  node.IPAddr `short:"m" required:"" placeholder:"GROUP" help:"Multicast address, IPv4 or IPv6."`
	Sender bool        `short:"s" help:"Send to the group. Default: receive from it."`
	Size   int         `short:"S" default:"100" placeholder:"BYTES" help:"Message size. Default: 100."`
	Count  int         `short:"C" default:"10" help:"Number of messages to send or to receive. Default: 10."`

	running.Flags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `Receivers join the group and wait for messages. A sender joins it too, and then sends. Each may be the real mckey (from
rdmacm-utils). Start the receivers first.

  softrnic mckey -m 239.1.2.3 --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24     here
  mckey -m 239.1.2.3 -b 10.0.0.1 -s                                              on the Linux machine`
}

// settle is how long a sender waits for switches to learn the members of the group, as in mckey.
const settle = time.Second

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	switch {
	case !c.Group.IsValid():
		return errors.New("the group's address is missing: use -m, such as -m 239.1.2.3")
	case !c.Group.IsMulticast():
		return fmt.Errorf("-m %v: not a multicast address: must be like 239.1.2.3 or ff05::1:3", c.Group.Addr)
	case c.Size < 1 || c.Size > 4096:
		return fmt.Errorf("--size %d: must be 1 to 4096", c.Size)
	case c.Count < 1 || c.Count > 1<<16:
		return fmt.Errorf("--count %d: must be 1 to %d", c.Count, 1<<16)
	}
	return nil
}

// Run sends or receives.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error { return c.talk(ctx, e, n) })
}

func (c *Command) talk(ctx context.Context, e *cli.Env, n *node.Node) (err error) {
	m := &member{Command: c}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.join(ctx, n); err != nil {
		return err
	}
	fmt.Fprintf(e.Text(), "joined %v: QPN 0x%06x, Q_Key 0x%08x\n", c.Group.Addr, m.to.QPNum, m.to.QKey)
	if c.Sender {
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := m.send(); err != nil {
			return err
		}
	}
	if err := m.complete(ctx); err != nil {
		return err
	}
	fmt.Fprintf(e.Text(), "%d messages of %d bytes %s\n", c.Count, c.Size, map[bool]string{true: "sent", false: "received"}[c.Sender])
	return nil
}

// member is one QP in the group.
type member struct {
	*Command
	pd *verbs.PD
	mr *verbs.MR
	cq *completion.Waiter
	id *rdmacm.SyncID
	to rdmacm.UDParam
	ah *verbs.AH
}

// join creates the QP, posts its receives, and joins the group.
func (m *member) join(ctx context.Context, n *node.Node) (err error) {
	if m.pd, err = n.Dev.AllocPD(); err != nil {
		return err
	}
	if m.mr, err = m.pd.RegMR(make([]byte, verbs.GRHLen+m.Size), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if m.cq, err = completion.NewWaiter(n.Dev, m.Count, completion.Adaptive); err != nil {
		return err
	}
	if m.id, err = rdmacm.CreateSyncID(rdmacm.UDP, n.Dev); err != nil {
		return err
	}
	if err = m.id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(m.Group.Addr, 1)); err != nil {
		return err
	}
	if err = m.id.CreateQP(m.pd, &verbs.QPInitAttr{SendCQ: m.cq.CQ, RecvCQ: m.cq.CQ,
		Cap: verbs.QPCap{MaxSendWR: m.Count, MaxRecvWR: m.Count, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return err
	}
	for i := 0; i < m.Count && !m.Sender; i++ {
		if err = m.id.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{m.mr.SGE(0, m.mr.Length())}}); err != nil {
			return err
		}
	}
	if err = m.id.JoinMulticast(ctx, m.Group.Addr); err != nil {
		return err
	}
	m.to = m.id.Event().UD
	m.ah, err = m.pd.CreateAH(&m.to.AHAttr)
	return err
}

// Close closes the objects of join, even if it has failed midway.
func (m *member) Close() error {
	return errors.Join(cli.Close(m.id), cli.Close(m.ah), cli.Close(m.cq), cli.Close(m.mr), cli.Close(m.pd))
}

// send sends all messages.
func (m *member) send() error {
	wr := verbs.SendWR{Opcode: verbs.SendWithImm, Flags: verbs.SendSignaled, ImmData: m.id.QP().Num(), AH: m.ah,
		SGList: []verbs.SGE{m.mr.SGE(verbs.GRHLen, m.Size)}, RemoteQPN: m.to.QPNum, RemoteQKey: m.to.QKey}
	for range m.Count {
		if err := m.id.QP().PostSend(&wr); err != nil {
			return err
		}
	}
	return nil
}

// complete waits until all messages are sent or received.
func (m *member) complete(ctx context.Context) error {
	var wcs [16]verbs.WC
	for done := 0; done < m.Count; {
		n, err := m.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if got := int(wcs[i].ByteLen) - verbs.GRHLen; !m.Sender && got != m.Size {
				return fmt.Errorf("a message of %d bytes arrived: --size must equal that of the sender", got)
			}
		}
		done += n
	}
	return nil
}
