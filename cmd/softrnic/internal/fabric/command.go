// Package fabric is `softrnic fabric`: it runs workloads of RDMA on a simulated network.
package fabric

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	network "github.com/softrnic/softrnic/link/fabric"
)

// Command has the subcommands.
type Command struct {
	Run Run `cmd:"" help:"Run workloads of RDMA on a simulated network: queues, marks and pauses are a model, the devices are real."`
}

// Run is the command line of softrnic fabric run.
type Run struct {
	File     string   `arg:"" optional:"" help:"Description of the network and its workloads, in TOML."`
	Topology string   `placeholder:"KIND:KEY=VALUE,…" help:"The table topology: star:hosts=16, dumbbell:hosts=8, leaf-spine:leaves=4,hosts=8,spines=4, fat-tree:k=6."`
	Workload []string `sep:"none" placeholder:"KIND:KEY=VALUE,…" help:"A further table workload: incast:senders=8,size=1MB. Repeatable."`
	Failure  []string `sep:"none" placeholder:"KIND:KEY=VALUE,…" help:"A further table failure: cable-down:node=leaf0,peer=spine1,at=1ms,for=500us. Repeatable."`
	Set      []string `sep:"none" placeholder:"KEY=VALUE" help:"Another value of the file: link.rate=40G, switch.ecmp=spray, rdma.dcqcn.enabled=true. Repeatable."`
	Seed     *int64   `help:"Seed of all random numbers. The same seed gives the same packets at the same times."`
	Until    *string  `placeholder:"TIME" help:"Virtual time at which the run ends, if flows are left. Default: 1s."`

	Workers  int           `placeholder:"N" help:"Processors to use. The results do not depend on it. Default: all with 64 hosts or more, else one."`
	Interval time.Duration `default:"10us" placeholder:"TIME" help:"Virtual time between samples. It doubles when there are more than a million. Default: 10us."`
	FCT      string        `name:"fct" type:"path" placeholder:"FILE" help:"Write each flow's completion time and slowdown to this file, as CSV."`
	Queues   string        `type:"path" placeholder:"FILE" help:"Write the ports' queues and bytes over time to this file, as CSV: those that have changed."`
	Rates    string        `type:"path" placeholder:"FILE" help:"Write the flows' acknowledged bytes over time to this file, as CSV."`
	Capture  []string      `sep:"none" placeholder:"NODE:PEER=FILE" help:"Write what passes a port to this file, as pcapng for Wireshark and softrnic trace: leaf0:spine1=up.pcapng. Repeatable."`
	Report   string        `type:"path" placeholder:"FILE" help:"Write a page with plots and a picture of the network to this file, as HTML."`
	Verify   bool          `help:"Verify all bytes at the receivers. Each flow has memory of its own then, about 1 MiB."`
	Digest   bool          `help:"Print only the digest: equal digests mean the same packets at the same times."`
	JSON     bool          `name:"json" help:"Print the summary as JSON."`
}

//go:embed help.txt
var help string

// Help implements kong.HelpProvider.
func (*Run) Help() string { return help }

// load returns the configuration of the file and the flags.
func (c *Run) load() (*config, error) {
	var settings []string
	if c.Topology != "" {
		settings = append(settings, "topology = "+spec(c.Topology))
	}
	for _, w := range c.Workload {
		settings = append(settings, "workload = ["+spec(w)+"]")
	}
	for _, f := range c.Failure {
		settings = append(settings, "failure = ["+spec(f)+"]")
	}
	for _, s := range c.Set {
		settings = append(settings, setting(s))
	}
	if c.Until != nil {
		settings = append(settings, setting("until="+*c.Until))
	}
	if c.File == "" && (c.Topology == "" || len(c.Workload) == 0) {
		return nil, cli.Usagef("no network: use a file, or --topology and --workload")
	}
	if c.Workers < 0 || c.Workers > network.MaxWorkers {
		return nil, cli.Usagef("--workers is %d: it must be 0 to %d", c.Workers, network.MaxWorkers)
	}
	if c.Interval < 100*time.Nanosecond || c.Interval > time.Second {
		return nil, cli.Usagef("--interval is %v: it must be 100ns to 1s", c.Interval)
	}
	cfg, err := load(c.File, settings)
	if err != nil {
		return nil, err
	}
	if c.Seed != nil {
		cfg.Seed = *c.Seed
	}
	return cfg, cfg.complete()
}

// Run runs the workloads.
func (c *Run) Run(ctx context.Context, e *cli.Env) (err error) {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	r, err := newRun(cfg, c.Verify, c.Interval, c.Workers)
	if err != nil {
		return err
	}
	defer r.close()
	captures, err := c.mirror(r)
	defer func() {
		for _, l := range captures {
			err = errors.Join(err, l.Err(), l.Close())
		}
	}()
	if err != nil {
		return err
	}
	var files []*output.File
	for _, name := range []string{c.FCT, c.Queues, c.Rates, c.Report} {
		if name == "" {
			files = append(files, nil)
			continue
		}
		f, err := output.Open(name)
		if err != nil {
			return errors.Join(err, discard(files))
		}
		files = append(files, f)
	}
	bar := output.NewProgress(e.Stderr, r.planned)
	began, shown := time.Now(), time.Time{}
	err = r.advance(ctx, func() {
		if now := time.Now(); now.Sub(shown) > 100*time.Millisecond {
			shown = now
			bar.Describe(fmt.Sprintf("%v virtual, %v real", r.f.Now(), now.Sub(began).Round(100*time.Millisecond)))
			_ = bar.Set(int(r.ended.Load()))
		}
	})
	_ = bar.Clear()
	interrupted := err
	if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		return errors.Join(err, discard(files))
	}
	err = nil
	s := r.summarize()
	s.Early = interrupted != nil
	for i, write := range []func(*bytes.Buffer) error{s.writeFCT, r.writeQueues, r.writeRates,
		func(b *bytes.Buffer) error { return c.writePage(b, r, s) }} {
		if files[i] != nil {
			var b bytes.Buffer
			err = errors.Join(err, write(&b), files[i].Replace(b.Bytes()))
		}
	}
	switch {
	case err != nil:
		return err
	case c.Digest:
		if interrupted == nil { // there is no digest of a part
			fmt.Fprintln(e.Text(), s.Digest)
		}
	case c.JSON:
		err = e.WriteJSON(s)
	default:
		s.print(e.Text())
	}
	if err == nil && s.Corrupt > 0 {
		err = fmt.Errorf("%d flows have wrong bytes at the receiver", s.Corrupt)
	}
	if err == nil {
		err = interrupted
	}
	return err
}

func discard(files []*output.File) (err error) {
	for _, f := range files {
		if f != nil {
			err = errors.Join(err, f.Discard())
		}
	}
	return err
}

// mirror starts the captures.
func (c *Run) mirror(r *run) (all []*capture.Link, err error) {
	for _, s := range c.Capture {
		port, file, ok := strings.Cut(s, "=")
		node, peer, _ := strings.Cut(port, ":")
		p, err := r.port(&failure{Node: node, Peer: peer})
		if err != nil || !ok || file == "" {
			return all, cli.Usagef("--capture %s: it must be NODE:PEER=FILE, of a port of the network", s)
		}
		l, err := capture.Create(p.Mirror(), file)
		if err != nil {
			return all, err
		}
		l.Attach(func([]link.Frame) {})
		all = append(all, l)
	}
	return all, nil
}
