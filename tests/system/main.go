// Command system runs the tests of the whole system: against live kernels, with unmodified
// programs, with killed processes, and the tests of packages with media at full size.
//
//	go run ./tests/system            prints what it will install and do, asks, and runs everything
//	go run ./tests/system -y         does not ask
//	go run ./tests/system -list      prints the steps
//	go run ./tests/system -y STEP…   only these steps
//	go run ./tests/system -y -run REGEXP STEP…   only these tests of them
//
// SOFTRNIC_SUITE is a release of Debian: trixie or sid. The step machines boots its kernel then,
// and the step programs runs in a root file system of it, whose compiler builds the libraries.
//
// It needs root, Debian, and /dev/net/tun. Only tests of the long run are skipped, and programs
// that the release lacks (tests/system/internal/programs/known.go). Any other that cannot run
// fails.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/internal/repeat"
	"github.com/softrnic/softrnic/tests/system/internal/debianroot"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// step is a set of packages that are tested together.
type step struct {
	name, about string
	flags       []string // of go test
	packages    []string
}

const programsStep = "programs"

// steps are in the order in which they run.
var steps = []step{
	{"machines", "the rxe and siw of Linux kernels, in virtual machines; unmodified programs on both sides; tshark",
		[]string{"-p=1", "-vet=off", "-timeout=40m"}, []string{"./tests/system/interop/..."}},
	{programsStep, "unmodified programs and C libraries on the drop-in libraries",
		[]string{"-vet=off", "-timeout=40m"}, []string{"./tests/system/dropin"}},
	{"processes", "killed processes, network namespaces",
		[]string{"-p=1", "-vet=off", "-timeout=40m"}, []string{"./tests/system/chaos", "./tests/system/netns"}},
	{"sizes", "the tests of the packages that have media, with all of them and more seeds",
		[]string{"-vet=off", "-timeout=20m"},
		[]string{"./link/...", "./stack/...", "./verbs/ulp/rpcrdma", "./tests/bench"}},
}

func main() {
	yes := flag.Bool("y", false, "go on without asking")
	list := flag.Bool("list", false, "print the steps")
	only := flag.String("run", "", "run the tests that match, as go test -run does")
	flag.Parse()
	if err := run(*yes, *list, *only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "system:", err)
		os.Exit(1)
	}
}

func run(yes, list bool, only string, names []string) error {
	chosen := steps
	if len(names) > 0 {
		chosen = nil
		for _, name := range names {
			i := slices.IndexFunc(steps, func(s step) bool { return s.name == name })
			if i < 0 {
				return fmt.Errorf("there is no step %q; -list prints them", name)
			}
			chosen = append(chosen, steps[i])
		}
	}
	for _, s := range chosen {
		fmt.Printf("%-10s %s\n", s.name, s.about)
	}
	if list {
		return nil
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("needs root, for packages, network namespaces and virtual machines; this is user %d", os.Getuid())
	}
	here, err := debianroot.Here()
	if err != nil {
		return err
	}
	missing, err := missingPackages(here)
	if err != nil {
		return err
	}
	fmt.Println("\nBesides, this boots virtual machines with qemu, makes network namespaces, and writes to ~/.cache/softrnic-peer and " +
		"~/.cache/softrnic-rdma-core.")
	elsewhere := ""
	if suite := gate.Suite(); suite != here && os.Getenv("SOFTRNIC_SUITE") != "" {
		elsewhere = suite
		fmt.Printf("The programs are those of Debian %s, in ~/.cache/%s, where mmdebstrap makes a root file system of some GB.\n",
			suite, debianroot.Cache)
	}
	if len(missing) > 0 {
		fmt.Printf("It installs %d Debian packages, and what they depend on, with apt-get:\n  %s\n", len(missing),
			strings.Join(missing, " "))
	} else {
		fmt.Println("The Debian packages that it needs are installed.")
	}
	if !yes {
		fmt.Print("Go on? [y/N] ")
		if answer, _ := bufio.NewReader(os.Stdin).ReadString('\n'); !strings.EqualFold(strings.TrimSpace(answer), "y") {
			return fmt.Errorf("not started")
		}
	}
	var failed []string
	result := func(name string, err error) {
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s (%v)", name, err))
		}
	}
	if elsewhere != "" {
		rest := slices.DeleteFunc(slices.Clone(chosen), func(s step) bool { return s.name == programsStep })
		if len(rest) < len(chosen) {
			result(programsStep, runIn(elsewhere, only))
		}
		chosen = rest
	}
	if len(chosen) > 0 {
		if err := install(missing); err != nil {
			return err
		}
		libs, err := libraries.Build()
		if err != nil {
			return err
		}
		defer os.RemoveAll(libs)
		for _, s := range chosen {
			result(s.name, s.run(libs, only))
		}
	}
	if failed != nil {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// run runs the step's tests, and fails if one was skipped. Nothing is repeated if only some tests
// were asked for.
func (s *step) run(libs, only string) error {
	events, err := os.CreateTemp("", "softrnic-system")
	if err != nil {
		return err
	}
	defer os.Remove(events.Name())
	defer events.Close()
	fmt.Printf("\n== %s\n", s.name)
	tests := repeat.Run{Packages: s.packages, Flags: s.flags, Events: events.Name(),
		Env: []string{"CI=true", "SOFTRNIC_SYSTEM=1", libraries.Variable + "=" + libs}}
	if only != "" {
		tests.Once, tests.Flags = true, append(slices.Clone(s.flags), "-run="+only)
	}
	begun := time.Now()
	testErr := tests.Do()
	fmt.Printf("== %s took %d s\n", s.name, int(time.Since(begun).Seconds()))
	skipped, err := skippedTests(events)
	switch {
	case err != nil:
		return err
	case testErr != nil:
		return testErr
	case len(skipped) > 0:
		return fmt.Errorf("skipped, which no test may be here: %s", strings.Join(skipped, ", "))
	}
	return nil
}

// runIn runs this command in a root file system of another release, with the step programs.
func runIn(suite, only string) error {
	root, err := debianroot.Make(suite, packagesOf(suite, slices.Concat(packages, packagesOfRoots)))
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "softrnic-root")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o777|os.ModeSticky); err != nil {
		return err
	}
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	goPaths := strings.Fields(string(out))
	module, err := os.Getwd()
	if err != nil {
		return err
	}
	paths := append(goPaths, module)
	for _, variable := range programs.Built {
		if dir := os.Getenv(variable); dir != "" {
			paths = append(paths, dir)
		}
	}
	args := []string{filepath.Join(goPaths[0], "bin/go"), "run", "./tests/system", "-y"}
	if only != "" {
		args = append(args, "-run="+only)
	}
	cmd := root.Command(temp, paths, append(args, programsStep)...)
	cmd.Env = append(cmd.Env, "PATH="+goPaths[0]+"/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// skippedTests reads go test's events. Tests of the long run do not count, nor do programs that the
// release is known to lack.
func skippedTests(events *os.File) (skipped []string, err error) {
	allowed := make(map[string]bool)
	err = eachEvent(events, func(e event) {
		switch name := filepath.Base(e.Package) + "." + e.Test; {
		case e.Action == "output" && (strings.Contains(e.Output, gate.OfLongRun) || strings.Contains(e.Output, programs.Known)):
			allowed[name] = true
		case e.Action == "skip" && e.Test != "" && !allowed[name]:
			skipped = append(skipped, name)
		}
	})
	return skipped, err
}
