package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// The ends of a run.
const (
	clean      = "clean"       // with an error
	unnoticed  = "exited 0"    // although something has failed
	crashed    = "crashed"     // by a signal
	hung       = "hung"        // until the time limit
	notReached = "not reached" // the fault did not come about
)

// run is a run of the program with a fault.
type run struct {
	rule, end, detail string
	took              time.Duration
}

// sweep runs the program once for each fault.
func (c *Command) sweep(ctx context.Context, e *cli.Env) error {
	dir, err := os.MkdirTemp("", "softrnic-sweep-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := &sweeper{c, self, filepath.Join(dir, "sites")}
	first, sites := s.run(ctx, "none")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first.end != unnoticed:
		return fmt.Errorf("without a fault, the program %s: %s", first.end, first.detail)
	case sites == nil || len(sites.Sites) == 0:
		return errors.New("without a fault, the program made no call of a device")
	}
	var rules []string
	for _, r := range plan(sites.Sites) {
		if strings.Contains(r, c.Only) {
			rules = append(rules, r)
		}
	}
	if c.Max > 0 && len(rules) > c.Max {
		rules = rules[:c.Max]
	}
	bar := output.NewProgress(e.Stderr, len(rules))
	var runs []run
	for _, rule := range rules {
		r, _ := s.run(ctx, rule)
		if ctx.Err() != nil {
			break
		}
		runs = append(runs, r)
		_ = bar.Add(1)
	}
	_ = bar.Finish()
	count := map[string]int{}
	for _, r := range runs {
		fmt.Fprintf(e.Stdout, "%-11s  %-40s  %5.1fs  %s\n", r.end, r.rule, r.took.Seconds(), r.detail)
		count[r.end]++
	}
	fmt.Fprintf(e.Stdout, "%d runs: %d clean, %d exited 0, %d crashed, %d hung, %d not reached\n", len(runs), count[clean], count[unnoticed],
		count[crashed], count[hung], count[notReached])
	if c.JUnit != "" {
		err = c.writeJUnit(runs)
	}
	return errors.Join(ctx.Err(), err)
}

// sweeper runs the program.
type sweeper struct {
	*Command
	self  string // the command softrnic
	sites string // the file for the calls of a run
}

// run runs the program with a rule. sites is nil if no process of it said what it did.
func (s *sweeper) run(ctx context.Context, rule string) (r run, sites *node.Sites) {
	_ = os.Remove(s.sites) // it may not exist
	r.rule = rule
	var out bytes.Buffer
	program := exec.Command(s.self, append([]string{"run", "--"}, s.Args...)...)
	program.Stdout, program.Stderr = &out, &out
	program.WaitDelay = time.Second // a process that outlives the program may have its output
	program.Env = append(os.Environ(), "SOFTRNIC_FAULT="+rule, node.SitesVariable+"="+s.sites)
	peer := s.peer()
	if peer != nil && s.Server != "" {
		if err := peer.Start(); err != nil {
			r.end, r.detail = notReached, err.Error()
			return r, nil
		}
		defer end(peer)
		sleep(ctx, s.Settle)
	}
	own(program)
	began := time.Now()
	if err := program.Start(); err != nil {
		r.end, r.detail = notReached, err.Error()
		return r, nil
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	if peer != nil && s.Client != "" {
		sleep(ctx, s.Settle)
		if err := peer.Start(); err == nil {
			defer end(peer)
		}
	}
	limit, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	var err error
	select {
	case err = <-ended:
		_ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL) // what it has left has no part in the next run
	case <-limit.Done():
		_ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL)
		<-ended
		r.end = hung
	}
	r.took = time.Since(began)
	r.detail = lastLine(out.String())
	sites = readSites(s.sites)
	var exit *exec.ExitError
	switch {
	case r.end == hung:
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		r.end = unnoticed
	case errors.As(err, &exit) && killedBy(exit) != 0:
		r.end, r.detail = crashed, killedBy(exit).String()
	default:
		r.end, r.detail = clean, fmt.Sprintf("%v: %s", err, r.detail)
	}
	if rule != "none" && r.end != crashed && r.end != hung && sites != nil && sites.Injected == 0 {
		r.end = notReached
	}
	return r, sites
}

// peer returns the command of the other side, or nil.
func (s *sweeper) peer() *exec.Cmd {
	line := s.Server + s.Client
	if line == "" {
		return nil
	}
	cmd := exec.Command("sh", "-c", line)
	own(cmd)
	return cmd
}

// own makes a command the first of a process group.
func own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// end kills a command that may have ended, and its processes.
func end(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// killedBy returns the signal that has ended the program, or 0. softrnic run ends with a status
// above 128 then.
func killedBy(exit *exec.ExitError) syscall.Signal {
	s := exit.Sys().(syscall.WaitStatus)
	if s.Signaled() {
		return s.Signal()
	}
	if n := syscall.Signal(s.ExitStatus() - 128); n > 0 && n <= syscall.SIGSYS {
		return n
	}
	return 0
}

// lastLine returns the last line of the program's output that is not empty.
func lastLine(out string) (last string) {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			last = line
		}
	}
	if len(last) > 100 {
		last = last[:100]
	}
	return strings.ToValidUTF8(last, "?")
}

// readSites returns what the processes of a run did. A rule counts the calls of one device of a
// process, so of each call there are as many as the one with the most has made.
func readSites(file string) *node.Sites {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	all := &node.Sites{Sites: map[string]uint64{}}
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var one node.Sites
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			return nil
		}
		all.Injected += one.Injected
		for name, n := range one.Sites {
			all.Sites[name] = max(all.Sites[name], n)
		}
	}
}

// writeJUnit writes the results as JUnit XML. A clean end has passed.
func (c *Command) writeJUnit(runs []run) error {
	suite := junit.Testsuite{Name: "softrnic fault --sweep " + strings.Join(c.Args, " ")}
	var total time.Duration
	for _, r := range runs {
		total += r.took
		tc := junit.Testcase{Name: r.rule, Classname: c.Args[0], Time: fmt.Sprintf("%.3f", r.took.Seconds())}
		switch r.end {
		case clean:
		case notReached:
			tc.Skipped = &junit.Result{Message: r.end}
		default:
			tc.Failure = &junit.Result{Message: r.end, Data: r.detail}
		}
		suite.AddTestcase(tc)
	}
	suite.Time = fmt.Sprintf("%.3f", total.Seconds())
	var all junit.Testsuites
	all.AddSuite(suite)
	var b bytes.Buffer
	if err := all.WriteXML(&b); err != nil {
		return err
	}
	return os.WriteFile(c.JUnit, b.Bytes(), 0o666)
}
