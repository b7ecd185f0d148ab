// Package repeat runs tests, repeats each that fails once, alone, and keeps [List]: the tests that
// have passed only then.
package repeat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	gotestsum = "gotest.tools/gotestsum@v1.13.0"
	module    = "github.com/softrnic/softrnic/"
)

// List is the file with the repeated tests, from the root of the module. It begins with a
// description of its lines.
const List = "tests/repeated.txt"

// Entry is a line of the list.
type Entry struct {
	Test, Package string // the package's directory, from the root of the module
	Commit, Date  string // of the run; the date is 2006-01-02
	Mended        string // the commit that mends the test or the code, or "" until there is one
}

func (e Entry) String() string {
	return strings.TrimSpace(strings.Join([]string{e.Test, e.Package, e.Commit, e.Date, e.Mended}, " "))
}

var line = regexp.MustCompile(`^(?:Test|Fuzz|Example)\w* [\w./-]+ [0-9a-f]{8,40} \d{4}-\d\d-\d\d( [0-9a-f]{8,40})?$`)

// Parse returns the entries of the list.
func Parse(list string) (all []Entry, err error) {
	for text := range strings.Lines(list) {
		if text = strings.TrimSpace(text); text == "" || text[0] == '#' {
			continue
		}
		if !line.MatchString(text) {
			return nil, fmt.Errorf("%s: %q is not a test, its package, a commit, a date and perhaps the commit that mends it", List, text)
		}
		f := append(strings.Fields(text), "")
		e := Entry{f[0], f[1], f[2], f[3], f[4]}
		if open(all, e) != nil && e.Mended == "" {
			return nil, fmt.Errorf("%s: %s of %s stands twice and is not mended", List, e.Test, e.Package)
		}
		all = append(all, e)
	}
	return all, nil
}

// open returns the entry of a test that is not mended, or nil.
func open(all []Entry, of Entry) *Entry {
	if i := slices.IndexFunc(all, func(e Entry) bool {
		return e.Test == of.Test && e.Package == of.Package && e.Mended == ""
	}); i >= 0 {
		return &all[i]
	}
	return nil
}

// result is a line of gotestsum's report: a package, a test of it, and how often it ran and failed.
var result = regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(module) + `([^.\n]+)\.(\w+): (\d+) runs, (\d+) failures$`)

// added returns the new entries for the tests of a report that have passed alone. A test that has
// an entry already, which is not mended, is an error. A subtest fails together with its test.
func added(all []Entry, report, commit, date string) (fresh []Entry, err error) {
	for _, r := range result.FindAllStringSubmatch(report, -1) {
		if r[3] == r[4] {
			continue // it has failed alone, too
		}
		e := Entry{Test: r[2], Package: r[1], Commit: commit, Date: date}
		if was := open(all, e); was != nil {
			err = errors.Join(err, fmt.Errorf("%s of %s has failed, then passed alone, for the second time: the first was at commit %s on %s. "+
				"Find the fault in the test or in the code, mend it, and append the commit that does to the line of %s",
				e.Test, e.Package, was.Commit, was.Date, List))
		} else {
			fresh = append(fresh, e)
		}
	}
	return fresh, err
}

// record appends the tests of a report to the list.
func record(report string) error {
	list, err := os.ReadFile(List)
	if err != nil {
		return err
	}
	all, err := Parse(string(list))
	if err != nil {
		return err
	}
	commit, err := exec.Command("git", "rev-parse", "--short=8", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse HEAD, for %s: %w", List, err)
	}
	fresh, again := added(all, report, string(bytes.TrimSpace(commit)), time.Now().UTC().Format(time.DateOnly))
	f, err := os.OpenFile(List, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return errors.Join(err, again)
	}
	for _, e := range fresh {
		fmt.Printf("failed, then passed alone; commit this new line of %s, for the next time fails: %v\n", List, e)
		_, wrote := fmt.Fprintln(f, e)
		err = errors.Join(err, wrote)
	}
	return errors.Join(err, f.Close(), again)
}

// Run says which tests run.
type Run struct {
	Packages []string
	Flags    []string // of go test
	Env      []string // besides this process's
	Events   string   // the file for go test's events, or ""
	Once     bool     // nothing is repeated
}

// Do runs the tests, in the root of the module. Nothing is repeated after a data race, a crash or
// more than four failures, subtests included. Failures are printed last, since of long output often
// only the end is kept.
func (r *Run) Do() error {
	report, err := os.CreateTemp("", "softrnic-repeated")
	if err != nil {
		return err
	}
	defer os.Remove(report.Name())
	defer report.Close()
	args := []string{"run", gotestsum, "--format=pkgname", "--format-icons=text", "--packages=" + strings.Join(r.Packages, " ")}
	if r.Events != "" {
		args = append(args, "--jsonfile="+r.Events)
	}
	if !r.Once {
		args = append(args, "--rerun-fails=1", "--rerun-fails-max-failures=4", "--rerun-fails-run-root-test",
			"--rerun-fails-abort-on-data-race", "--rerun-fails-report="+report.Name())
	}
	var said bytes.Buffer
	cmd := exec.Command("go", append(append(args, "--"), r.Flags...)...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &said), os.Stderr
	failed := cmd.Run()
	if failed != nil {
		fmt.Printf("failed:\n%s", bytes.Join(regexp.MustCompile(`(?m)^=== FAIL.*\n`).FindAll(said.Bytes(), -1), nil))
	}
	repeated, err := os.ReadFile(report.Name())
	if err == nil && len(repeated) > 0 {
		err = record(string(repeated))
	}
	return errors.Join(failed, err)
}
