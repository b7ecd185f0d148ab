// Command bench compares the benchmarks of two commits. It runs each in a git worktree of its own,
// in turn, so that other load of the machine affects both. benchstat prints the changes.
//
// Usage:
//
//	go run ./tests/bench [flags] [BASE [HEAD]]
//
// BASE is a commit, by default HEAD~1. Without HEAD, the working tree is compared as it is. Both
// columns of the result and their ratio are benchstat's; "~" is no difference beyond the noise.
// Quote only ratios of one run.
//
//	go run ./tests/bench                                  # the last commit and the uncommitted changes
//	go run ./tests/bench -bench Superframe -pkg ./rdmatransport/internal/rocetransport main
//	go run ./tests/bench -count 20 -cpu 1,2 v0.1 v0.2
//	go run ./tests/bench -pprof /tmp/profiles -pkg ./stack HEAD~3 HEAD   # base.cpu.pprof and head.cpu.pprof
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

const benchstat = "golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da"

// options are the flags.
type options struct {
	bench, pkg, time, cpu, pprof string
	count                        int
}

func main() {
	var o options
	flag.StringVar(&o.bench, "bench", ".", "run the benchmarks that match this regular expression")
	flag.StringVar(&o.pkg, "pkg", "./...", "packages; those that both commits have")
	flag.StringVar(&o.time, "benchtime", "200ms", "how long to run each benchmark each time, or 100x for a number")
	flag.StringVar(&o.cpu, "cpu", "", "values of GOMAXPROCS, as for go test")
	flag.StringVar(&o.pprof, "pprof", "", "write CPU profiles into this directory; -pkg must be one package")
	flag.IntVar(&o.count, "count", 6, "how many times to run each benchmark: benchstat wants 6 or more")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, &o, flag.Args(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// compare runs the benchmarks of the commits in args and prints the differences.
func compare(ctx context.Context, o *options, args []string, stdout, stderr io.Writer) (err error) {
	if len(args) > 2 {
		return fmt.Errorf("%d arguments: must be at most a base and a head", len(args))
	}
	base := "HEAD~1"
	if len(args) > 0 {
		base = args[0]
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	// The working tree, or the commit in a worktree.
	sides := []*side{{name: "base", commit: base}, {name: "head"}}
	if len(args) == 2 {
		sides[1].commit = args[1]
	}
	for _, s := range sides {
		s.results = filepath.Join(dir, s.name+".txt")
		if s.tree = "."; s.commit != "" {
			s.tree = filepath.Join(dir, s.name)
			if err := run(ctx, ".", stderr, stderr, "git", "worktree", "add", "--detach", s.tree, s.commit); err != nil {
				return err
			}
			defer func() {
				// The context may have ended already: remove the worktree anyway.
				err = errors.Join(err, run(context.Background(), ".", stderr, stderr, "git", "worktree", "remove", "--force", s.tree))
			}()
		}
	}
	for i := range o.count {
		for _, s := range sides {
			fmt.Fprintf(stderr, "%s: %d of %d\n", s.name, i+1, o.count)
			if err := s.bench(ctx, o, stderr); err != nil {
				return err
			}
		}
	}
	return run(ctx, ".", stdout, stderr, "go", "run", benchstat, "base="+sides[0].results, "head="+sides[1].results)
}

// side is one of the two commits.
type side struct {
	name    string
	commit  string // "": the working tree
	tree    string // its directory
	results string // file
}

// bench runs the benchmarks once.
func (s *side) bench(ctx context.Context, o *options, stderr io.Writer) error {
	f, err := os.OpenFile(s.results, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	args := []string{"test", "-run", "^$", "-bench", o.bench, "-benchmem", "-benchtime", o.time}
	if o.cpu != "" {
		args = append(args, "-cpu", o.cpu)
	}
	if o.pprof != "" {
		profile, err := filepath.Abs(filepath.Join(o.pprof, s.name+".cpu.pprof"))
		if err != nil {
			return err
		}
		args = append(args, "-cpuprofile", profile, "-o", filepath.Join(filepath.Dir(s.results), s.name+".test"))
	}
	err = run(ctx, s.tree, f, stderr, "go", append(args, strings.Fields(o.pkg)...)...)
	return errors.Join(err, f.Close())
}

// run runs a command in a directory.
func run(ctx context.Context, dir string, stdout, stderr io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(slices.Insert(args, 0, name), " "), err)
	}
	return nil
}
