// Package peers is `softrnic peers`: it shows the tunnels of running nodes with --secure.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
)

// Command shows the peers of nodes.
type Command struct {
	PID  int  `arg:"" optional:"" name:"pid" help:"Show the nodes of this process and of those that it started. Default: all nodes of this user."`
	JSON bool `name:"json" help:"Print JSON: one object per node."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It shows the nodes with --secure of this user, and programs of softrnic run --secure.

    PEER       name or public key
    ADDRESS    that of the peer's key
    ENDPOINT   where packets to the peer go; "-" if it has not contacted this node yet
    HANDSHAKE  time since the last one; a tunnel in use has one every two minutes. "-": none, because the peer is not there, because
               it does not have this node's public key, or because this node has the wrong one
    TX, RX     bytes of encrypted packets`
}

// Run shows the peers.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	nodes, err := query.Nodes(ctx, c.PID)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	found := false
	for _, n := range nodes {
		t := n.Tunnel
		if t == nil {
			continue
		}
		found = true
		if c.JSON {
			err := json.NewEncoder(e.Stdout).Encode(struct {
				PID int `json:"pid"`
				*status.Tunnel
			}{n.PID, t})
			if err != nil {
				return err
			}
			continue
		}
		port := ""
		if t.Port != 0 {
			port = fmt.Sprintf("UDP port %d, ", t.Port)
		}
		fmt.Fprintf(w, "%d  %v  %v  %sMTU %d\n", n.PID, t.PublicKey, t.PublicKey.Addr(), port, t.MTU)
		fmt.Fprintln(w, "PEER\tADDRESS\tENDPOINT\tHANDSHAKE\tTX\tRX")
		for _, p := range t.Peers {
			name, endpoint, handshake := p.Name, "-", "-"
			if name == "" {
				name = p.PublicKey.String()
			}
			if p.Endpoint.IsValid() {
				endpoint = p.Endpoint.String()
			}
			if !p.Handshake.IsZero() {
				handshake = n.Time.Sub(p.Handshake).Round(time.Second).String()
			}
			fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%d\t%d\n", name, p.Addr, endpoint, handshake, p.Sent, p.Received)
		}
	}
	if !found {
		return errors.New("no node of this user with --secure runs here")
	}
	return w.Flush()
}
