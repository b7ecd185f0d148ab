// Package conform is `softrnic conform`: a raw packet peer that checks, statement by statement,
// whether a target conforms to the protocol.
//
// A case sends what the standard allows, or what the standard says is to be refused, also where
// known targets wrongly accept it: that is what the suite is to find. A case stays only if it
// crashes or hangs no known target, and reaches only memory that the target's responder has
// registered for the tester.
package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/iwarp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/responder"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/rocev2"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
)

// Command tests a target.
type Command struct {
	Transport string `enum:"rocev2,iwarp" default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol to test: rocev2 or iwarp. Default: rocev2."`

	Target  netip.Addr    `placeholder:"IP" help:"IPv4 address of the RDMA device to test."`
	Addr    netip.Addr    `placeholder:"IP" help:"IPv4 address of the tester on --link, in the target's subnet; no other host may have it."`
	Link    node.LinkSpec `default:"pipe" placeholder:"LINK" help:"Ethernet link to the target: shm[:NAME], stream:PATH[,listen], tap:NAME[,bridge=BRIDGE] or packet:INTERFACE, as for other commands."`
	MTU     int           `name:"mtu" type:"mtu" placeholder:"BYTES" help:"Largest IP packet on the link. Default: the link's own."`
	Control string        `placeholder:"HOST:PORT" default:"127.0.0.1:18516" help:"Address of the target's responder (softrnic serve --conform). Default: 127.0.0.1:18516."`

	Netns  bool `help:"Linux: create a network namespace with a virtual Ethernet pair and a SoftRNIC in it, and test that SoftRNIC. Nothing else is needed or changed. Users other than root need user namespaces, which most machines allow."`
	Inside bool `hidden:"" help:"Internal: this is the process in the namespace."`

	Only    []string      `placeholder:"ID" help:"Run only these cases; a * at the end matches any suffix."`
	List    bool          `help:"Print the catalogue: the ID, source and statement of each case."`
	Pyverbs bool          `help:"Print a responder for any RoCEv2 or iWARP device of libibverbs: a Python script that needs pyverbs."`
	JSON    bool          `name:"json" help:"Print the results as JSON, with the packets of each case, instead of a table."`
	JUnit   string        `name:"junit" type:"path" placeholder:"FILE" help:"Write the results to this file, in JUnit's XML format."`
	HTML    string        `name:"html" type:"path" placeholder:"FILE" help:"Write an HTML report to this file."`
	Capture string        `type:"path" placeholder:"DIR" help:"Write each case's packets to DIR/ID.pcap."`
	Wait    time.Duration `default:"2s" help:"How long to wait for an answer. Default: 2s."`
	Quiet   time.Duration `default:"10ms" help:"How long to wait for a packet that must not come, after the target has answered a later request. Default: 10ms."`

	token string // of the responder of --netns
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `Each case is one statement of the standard. It sends packets that no RDMA stack has made, and checks the answers, the
target's memory and its completions. The verdict is PASS, FAIL, or SKIP with the reason. If a case fails, the exit code
is 1. If the target cannot be tested, for example because its responder cannot create a queue pair, the exit code is 2.

An example with a SoftRNIC as the target:

  softrnic conform --netns

RoCEv2 is tested with raw packets, iWARP over the tester's own TCP. Neither uses an address of
this machine.

A responder on the target creates queue pairs for the tester, who needs its token. The token is in SOFTRNIC_CONFORM_TOKEN
in the environment of both, or the responder makes one. For a SoftRNIC:

  softrnic serve --conform --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24          prints a token
  SOFTRNIC_CONFORM_TOKEN=… softrnic conform --link tap:rnic1,bridge=br0 --addr 10.0.0.8 --target 10.0.0.9

For an RDMA device of another machine, 10.0.0.7:

  softrnic conform --pyverbs > responder.py                                        copy it to 10.0.0.7
  python3 responder.py rxe0 0.0.0.0:18516                                          on 10.0.0.7; prints a token
  SOFTRNIC_CONFORM_TOKEN=… softrnic conform --control 10.0.0.7:18516 --link packet:eth0 --addr 10.0.0.8 --target 10.0.0.7`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if _, err := c.chosen(c.catalogue()); err != nil {
		return err
	}
	if c.List || c.Pyverbs {
		return nil
	}
	if c.Netns {
		if c.Target.IsValid() || c.Addr.IsValid() || c.Link.Medium != "pipe" {
			return errors.New("--netns makes a link and a target of its own: leave --link, --addr and --target out")
		}
		return nil
	}
	if !c.Target.Is4() {
		return errors.New("--target is missing: must be the IPv4 address of the device to test")
	}
	if !c.Addr.Is4() {
		return errors.New("--addr is missing: must be an IPv4 address for the tester")
	}
	return nil
}

// catalogue returns every case of the transport. The cases cannot be run.
func (c *Command) catalogue() []suite.Case {
	if c.Transport == "iwarp" {
		return iwarp.Cases(nil)
	}
	return rocev2.Cases(nil)
}

// chosen returns the requested cases of all.
func (c *Command) chosen(all []suite.Case) ([]suite.Case, error) {
	if len(c.Only) == 0 {
		return all, nil
	}
	for _, pattern := range c.Only {
		if !slices.ContainsFunc(all, func(s suite.Case) bool { return matches(pattern, s.ID) }) {
			return nil, fmt.Errorf("--only %s: there is no such case of %s: --list prints them", pattern, c.Transport)
		}
	}
	return slices.DeleteFunc(all, func(s suite.Case) bool {
		return !slices.ContainsFunc(c.Only, func(pattern string) bool { return matches(pattern, s.ID) })
	}), nil
}

func matches(pattern, id string) bool {
	if beginning, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(id, beginning)
	}
	return pattern == id
}

// Run runs the cases.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	if c.Pyverbs {
		_, err := io.WriteString(e.Stdout, responder.Pyverbs)
		return err
	}
	if c.List {
		cases, err := c.chosen(c.catalogue())
		for _, s := range cases {
			fmt.Fprintf(e.Text(), "%-24s %-38s %s\n", s.ID, s.Source, s.Statement)
		}
		return err
	}
	if c.Netns && !c.Inside {
		return inNamespace(ctx, e)
	}
	if c.Netns {
		stop, err := c.withTarget()
		if err != nil {
			return err
		}
		defer stop()
	}
	if c.Link.Medium == "pipe" && e.LAN == nil {
		return cli.Usagef("a pipe is within one process: use --link shm, stream:PATH, tap:NAME or packet:INTERFACE")
	}
	if c.Capture != "" {
		if err := os.MkdirAll(c.Capture, 0o777); err != nil {
			return fmt.Errorf("--capture: %w", err)
		}
	}
	l, err := c.Link.OpenRaw(e.LAN, c.Addr, c.MTU)
	if err != nil {
		return err
	}
	packets := &recorder{}
	t, err := c.newTester(l, packets)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	return errors.Join(c.run(ctx, e, t, packets), t.close())
}

// run connects to the target and runs the cases.
func (c *Command) run(ctx context.Context, e *cli.Env, t *tester, packets *recorder) error {
	ctl, err := control.Dial(c.Control, cmp.Or(c.token, os.Getenv(control.TokenVariable)), 10*time.Second)
	if err != nil {
		return cli.Usagef("cannot test: --control %s: %w", c.Control, err)
	}
	defer ctl.Close()
	if err := t.find(c.Wait); err != nil {
		return cli.Usagef("cannot test: %w", err)
	}
	if err := t.prove(ctl); err != nil {
		return cli.Usagef("cannot test %s: %w", ctl.Hello.Name, err)
	}
	cases, err := c.chosen(t.cases(ctl))
	if err != nil {
		return err
	}
	report := &Report{Target: c.Target.String(), Transport: c.Transport, Device: ctl.Hello.Name, Version: cli.Version(), Begun: time.Now()}
	for i := range cases {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		packets.take()
		var r suite.Result
		if report.Stopped != "" {
			r = cases[i].NotRun("the target has not answered since " + report.Stopped)
		} else {
			r = cases[i].Judge(nil)
			r.Packets = packets.take()
		}
		if err := ctl.Err(); err != nil && report.Stopped == "" {
			report.Stopped = r.ID
			r.Verdict, r.Reason = suite.Fail, fmt.Sprintf("in this case, or after it, the target stops answering: %v", err)
		}
		report.add(r)
		if !c.JSON {
			report.row(e.Text(), &r)
		}
		if c.Capture != "" {
			if err := savePackets(c.Capture, &r); err != nil {
				return fmt.Errorf("--capture: %w", err)
			}
		}
	}
	if err := c.write(e, report); err != nil {
		return err
	}
	if report.Stopped != "" {
		return fmt.Errorf("the target does not answer since %s: see to it, and run the other cases with --only", report.Stopped)
	}
	if n := report.Count[suite.Fail]; n > 0 {
		return fmt.Errorf("%d of %d cases fail", n, len(report.Results))
	}
	return nil
}
