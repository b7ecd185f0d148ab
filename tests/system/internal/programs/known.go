package programs

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Known is the beginning of the reason with which Ran skips a test.
const Known = "this release has it so: "

// difference is something that programs of newer packages lack or do otherwise.
type difference struct {
	pkg      string // of Debian; its version decides
	from     string // the first version that was seen to differ, or ""
	before   string // the first version of which it is not so, or ""
	commands string // a regular expression for the programs with their options
	over     string // a regular expression for what they run over, as Ran gets it
	shown    string // commands and over, in Markdown
	reason   string
	except   string // an environment variable with which it is not so, or ""
}

// differences has what was seen. A package that is newer than all of its lines is as in the last.
var differences = []difference{
	{pkg: "libucx0", from: "1.23", commands: `ucx_info|ucx_perftest|ucc_(?:perftest|test_mpi)|mpirun\.\S+ .*UCX_TLS=(rc|ud)_v`,
		shown:  "`ucx_info`, `ucx_perftest`, `ucc_perftest`, `ucc_test_mpi`, `mpirun` with `UCX_TLS=rc_v` or `ud_v`",
		reason: noUCX, except: "SOFTRNIC_UCX"},
	{pkg: "rdmacm-utils", from: "56", before: "60", commands: "cmtime -s ", over: `shared memory|sockets \(iWARP\)`,
		shown:  "`cmtime -s` over shared memory, and over sockets with iWARP",
		reason: "cmtime also listens on TCP, with the address and the port of its RDMA listener"},
	{pkg: "rdmacm-utils", from: "60", commands: "cmtime -s ", shown: "`cmtime -s`",
		reason: "cmtime has other options, and a controller"},
	{pkg: "rdmacm-utils", before: "60", commands: "cmtime -L |cmtime -b \\S+ -C ", shown: "`cmtime -L`, `cmtime -b … -C`",
		reason: "cmtime has no controller"},
}

const noUCX = "Debian's UCX has no module for InfiniBand, libuct_ib.so"

// known returns the difference that keeps a command line from running here.
func known(command, over string) (reason string, err error) {
	for _, d := range differences {
		if is, err := d.is(command, over); err != nil || is {
			return d.reason, err
		}
	}
	return "", nil
}

// is reports whether the difference is one of a command line, and of the installed package.
func (d *difference) is(command, over string) (bool, error) {
	for _, of := range [][2]string{{d.commands, command}, {d.over, over}} {
		if matches, err := regexp.MatchString("^(?:"+of[0]+")", of[1]); err != nil || !matches {
			return false, err
		}
	}
	version := Version(d.pkg)
	if version == "" || d.except != "" && os.Getenv(d.except) != "" {
		return false, nil
	}
	if since, err := compare(version, "ge", d.from); err != nil || !since || d.before == "" {
		return since, err
	}
	return compare(version, "lt", d.before)
}

// skipKnown skips a test of a command line that does not run with this release's packages.
func skipKnown(t testing.TB, command, over string) {
	t.Helper()
	reason, err := known(command, over)
	switch {
	case err != nil:
		t.Fatal(err)
	case reason != "":
		t.Skip(Known + reason)
	}
}

// renderDifferences returns the table in Markdown.
func renderDifferences() string {
	var b strings.Builder
	b.WriteString("| package | from version | before version | what does not run | reason |\n|---|---|---|---|---|\n")
	for _, d := range differences {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", d.pkg, d.from, d.before, d.shown, d.reason)
	}
	return b.String()
}

var versions sync.Map // of packages

// Version returns the version of an installed package, or "".
func Version(pkg string) string {
	if v, ok := versions.Load(pkg); ok {
		return v.(string)
	}
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}\n", pkg).Output()
	if err != nil {
		out = nil
	}
	version, _, _ := strings.Cut(string(out), "\n") // of several architectures, the first
	versions.Store(pkg, version)
	return version
}

// compare reports whether a relation holds between versions of Debian. "" is the oldest.
func compare(version, relation, other string) (bool, error) {
	err := exec.Command("dpkg", "--compare-versions", version, relation, other).Run()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("dpkg --compare-versions %s %s %s: %w", version, relation, other, err)
	}
	return true, nil
}
