// Package programs keeps the table of programs written for libibverbs and librdmacm that were seen
// to run on the drop-in libraries, and of what newer releases have otherwise (known.go). Tests that
// run such programs call Ran. If SOFTRNIC_TABLE is set,
// Save adds the results to table.json, and rewrites the table of tests/system/dropin/PROGRAMS.md:
//
//	SOFTRNIC_TABLE=1 SOFTRNIC_LONG=1 go test ./tests/system/dropin ./tests/system/interop \
//	    -run 'TestDropin|TestPingpong|TestPerftest|TestConnectionManager|TestQperf|TestFio'
//	SOFTRNIC_TABLE=1 SOFTRNIC_SUITE=sid go run ./tests/system -y programs
package programs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/tests/system/internal/debianroot"
)

// Run is one run of a program.
type Run struct {
	Release string `json:"release"` // of Debian, whose program it is
	Program string `json:"program"`
	Package string `json:"package"` // of Debian, or the project; with its version
	Options string `json:"options"`
	Over    string `json:"over"` // the link and the wire protocol, or the peer
	Passed  bool   `json:"passed"`
}

// Built are the environment variables that name directories with programs of other projects, which
// were built with Debian's libraries because Debian has no such package.
var Built = []string{"SOFTRNIC_UCX", "SOFTRNIC_VALKEY", "SOFTRNIC_FABTESTS", "SOFTRNIC_MOONCAKE"}

// page is the file that shows the table to readers, relative to the directory of this package.
const page = "../../dropin/PROGRAMS.md"

var (
	mu   sync.Mutex
	runs []Run
)

// Ran records the outcome of a test that runs a command line over a link. It skips the test if the
// table of differences says that the installed version of the program cannot.
func Ran(t testing.TB, command, over string) {
	skipKnown(t, command, over)
	if os.Getenv("SOFTRNIC_TABLE") == "" {
		return
	}
	t.Helper()
	program, _, _ := strings.Cut(command, " ")
	RanOf(t, debian(program), command, over)
}

// RanOf is Ran for a program that is not Debian's. pkg is its project and version.
func RanOf(t testing.TB, pkg, command, over string) {
	if os.Getenv("SOFTRNIC_TABLE") == "" {
		return
	}
	t.Helper()
	program, options, _ := strings.Cut(command, " ")
	here, err := debianroot.Here()
	if err != nil {
		t.Fatal(err)
	}
	r := Run{Release: here, Program: program, Package: pkg, Options: options, Over: over}
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		r.Passed = !t.Failed()
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, r)
	})
}

// debian returns the package of a program, and its version.
func debian(program string) string {
	file, err := exec.LookPath(program)
	if err != nil {
		file = "/usr/lib/python3/dist-packages/" + program
	}
	out, err := exec.Command("dpkg-query", "-S", file).Output()
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(out), ":")
	return strings.TrimSpace(name + " " + Version(name))
}

// Save adds the recorded runs to the table. directory is that of this package.
func Save(directory string) error {
	mu.Lock()
	defer mu.Unlock()
	if len(runs) == 0 {
		return nil
	}
	all, err := load(directory)
	if err != nil {
		return err
	}
	for _, r := range runs {
		all = slices.DeleteFunc(all, func(o Run) bool {
			return o.Release == r.Release && o.Program == r.Program && o.Options == r.Options && o.Over == r.Over
		})
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Program, b.Program), cmp.Compare(a.Options, b.Options),
			cmp.Compare(a.Over, b.Over), cmp.Compare(a.Release, b.Release))
	})
	var text bytes.Buffer
	for _, r := range all {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	if err := os.WriteFile(filepath.Join(directory, "table.json"), text.Bytes(), 0o644); err != nil {
		return err
	}
	return writePage(directory, all)
}

// writePage rewrites the tables of the page.
func writePage(directory string, all []Run) error {
	page := filepath.Join(directory, page)
	was, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	now, err := withTables(string(was), all)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(now), 0o644)
}

// withTables returns the text of the page with the tables of programs, of trials and of
// differences.
func withTables(text string, all []Run) (string, error) {
	const writer = "tests/system/internal/programs"
	text, err := Replace(text, writer, render(all))
	if err != nil {
		return "", err
	}
	if text, err = Replace(text, writer+"/trials.go", renderTrials()); err != nil {
		return "", err
	}
	return Replace(text, writer+"/known.go", renderDifferences())
}

// load reads the table: a line of JSON for each run.
func load(directory string) (all []Run, err error) {
	text, err := os.ReadFile(filepath.Join(directory, "table.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var r Run
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("table.json: %w", err)
		}
		all = append(all, r)
	}
	return all, nil
}

// Replace replaces the table in a Markdown text, between the lines that name its writer.
func Replace(text, writer, table string) (string, error) {
	begin, end := "<!-- The table is written by "+writer+". -->\n", "<!-- So far the table. -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("there is no place for the table of %s", writer)
	}
	return before + begin + table + end + after, nil
}

// releases are those of the table's columns.
var releases = []string{"bookworm", "trixie", "sid"}

// render returns the table in Markdown: a line for each program. There are columns for the versions
// of each release, for runs between two processes of one machine, with rxe, and with siw, both of
// another machine.
func render(all []Run) string {
	var b strings.Builder
	b.WriteString("| program | package | bookworm | trixie | sid | two processes of one machine | rxe | siw | result |\n" +
		"|---|---|---|---|---|---|---|---|---|\n")
	of := map[string][]Run{}
	var names []string
	for _, r := range all {
		if of[r.Program] == nil {
			names = append(names, r.Program)
		}
		of[r.Program] = append(of[r.Program], r)
	}
	for _, name := range names {
		runs := of[name]
		fmt.Fprintf(&b, "| `%s` | %s |", name, packageOf(runs))
		for _, release := range releases {
			fmt.Fprintf(&b, " %s |", versionOf(runs, release))
		}
		fmt.Fprintf(&b, " %s | %s | %s | %s |\n", column(runs, ""), column(runs, "rxe"), column(runs, "siw"), result(runs))
	}
	return b.String()
}

// debianVersion is a package of Debian with its version. Others have a name of their project and a
// tag.
var debianVersion = regexp.MustCompile(`^(\S+) ([0-9]\S*)$`)

// packageOf names the package, or the packages if releases differ.
func packageOf(runs []Run) string {
	var names []string
	for _, release := range releases {
		for _, r := range runs {
			name := cmp.Or(r.Package, "this repository")
			if m := debianVersion.FindStringSubmatch(name); m != nil {
				name = m[1]
			}
			if r.Release == release && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// versionOf returns the version of a release's package with which a program has run, "yes" if it is
// not Debian's, or "".
func versionOf(runs []Run, release string) string {
	i := slices.IndexFunc(runs, func(r Run) bool { return r.Release == release })
	if i < 0 {
		return ""
	}
	if m := debianVersion.FindStringSubmatch(runs[i].Package); m != nil {
		return m[2]
	}
	return "yes"
}

func result(runs []Run) string {
	var said []string
	for _, release := range releases {
		failed, n := 0, 0
		for _, r := range runs {
			if r.Release == release {
				n++
				if !r.Passed {
					failed++
				}
			}
		}
		if failed > 0 {
			said = append(said, fmt.Sprintf("%s: %d of %d failed", release, failed, n))
		}
	}
	return cmp.Or(strings.Join(said, ", "), "passed")
}

// column returns the cell of runs with a peer, or with none: for each set of media, the options
// that ran over all of them.
func column(runs []Run, peer string) string {
	over := map[string][]string{} // of each program's options
	var options []string          // in order
	for _, r := range runs {
		with, rest, _ := strings.Cut(r.Over, ", ")
		if with != "rxe" && with != "siw" {
			with, rest = "", r.Over
		}
		if with != peer {
			continue
		}
		o := shorten(r.Options)
		if _, ok := over[o]; !ok {
			options = append(options, o)
		}
		if !slices.Contains(over[o], rest) {
			over[o] = append(over[o], rest)
		}
	}
	with := map[string][]string{} // the options of each set of media
	var sets []string
	for _, o := range options {
		set := media(over[o])
		if _, ok := with[set]; !ok {
			sets = append(sets, set)
		}
		with[set] = append(with[set], o)
	}
	var cells []string
	for _, set := range sets {
		cell := fold(with[set])
		switch {
		case cell == "":
			cell = cmp.Or(set, "yes")
		case set != "":
			cell = set + ": " + cell
		}
		cells = append(cells, cell)
	}
	return strings.Join(cells, "<br>")
}

// media names a set of links with their wire protocols: "shared memory and sockets (RoCEv2,
// iWARP)".
func media(list []string) string {
	slices.Sort(list)
	protocols := map[string][]string{} // of a link, and its suffix
	var links []string
	for _, m := range list {
		link, rest, ok := strings.Cut(m, " (")
		protocol, more, ok2 := strings.Cut(rest, ")")
		if !ok || !ok2 {
			return strings.Join(list, ", ")
		}
		link += "|" + more
		if protocols[link] == nil {
			links = append(links, link)
		}
		protocols[link] = append(protocols[link], protocol)
	}
	var said []string
	for i := 0; i < len(links); i++ {
		same := links[i]
		name, more, _ := strings.Cut(same, "|")
		names := []string{name}
		for i+1 < len(links) && slices.Equal(protocols[links[i+1]], protocols[same]) && strings.HasSuffix(links[i+1], "|"+more) {
			i++
			name, _, _ = strings.Cut(links[i], "|")
			names = append(names, name)
		}
		said = append(said, fmt.Sprintf("%s (%s)%s", strings.Join(names, " and "), strings.Join(protocols[same], ", "), more))
	}
	return strings.Join(said, "; ")
}

// fold lists options. "[-R]" means with and without -R, and a common prefix appears once.
func fold(options []string) string {
	var list [][]string
	if i := slices.Index(options, ""); i > 0 {
		options = slices.Insert(slices.Delete(options, i, i+1), 0, "")
	}
	for _, o := range options {
		with := strings.TrimSpace(o + " -R")
		if bare, ok := strings.CutSuffix(" "+o, " -R"); ok && slices.Contains(options, strings.TrimSpace(bare)) {
			continue
		}
		if slices.Contains(options, with) {
			o = strings.TrimSpace(o + " [-R]")
		}
		list = append(list, strings.Fields(o))
	}
	common := 0
	for len(list) > 2 && !slices.ContainsFunc(list, func(o []string) bool { return len(o) <= common+1 || o[common] != list[0][common] }) {
		common++
	}
	var said []string
	for _, o := range list {
		if len(o) > 0 {
			said = append(said, "`"+strings.Join(o[common:], " ")+"`")
		} else {
			said = append(said, "no options")
		}
	}
	switch {
	case len(list) == 1 && len(list[0]) == 0:
		return ""
	case common > 0:
		return "`" + strings.Join(list[0][:common], " ") + "` with " + strings.Join(said, ", ")
	}
	return strings.Join(said, ", ")
}

// shorten omits options that do not identify the test: the number of messages, the server's
// address, the timeout of a lost packet, the option against warnings about the processor's
// frequency, and the way in which fio's sides find each other.
func shorten(options string) string {
	var kept []string
	fields := strings.Fields(options)
	for i := 0; i < len(fields); i++ {
		name, _, _ := strings.Cut(fields[i], "=")
		switch f := fields[i]; {
		case (f == "-n" || f == "-u") && i+1 < len(fields):
			i++
		case f == "-F" || slices.Contains([]string{"--name", "--thread", "--port", "--bs", "--rw", "--iodepth", "--hostname", "--do_verify",
			"--scramble_buffers", "--iomem"}, name):
		case f == "SERVER" && i > 0 && i == len(fields)-1 && (fields[i-1] == "-F" || !strings.HasPrefix(fields[i-1], "-")):
		default:
			kept = append(kept, f)
		}
	}
	return strings.Join(kept, " ")
}

// Counted returns the sum of the counters that processes wrote to this file, their
// SOFTRNIC_COUNTERS.
func Counted(file string) (map[string]uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("no process has written its counters: %w", err)
	}
	sum := map[string]uint64{}
	for line := range bytes.Lines(text) {
		var one map[string]uint64
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for name, v := range one {
			sum[name] += v
		}
	}
	return sum, nil
}

// Connected returns the number of connections of a wire protocol, RoCE or iWARP, in this file, the
// SOFTRNIC_TRACE of a process.
func Connected(file, transport string) (n int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		var event struct{ Msg, Transport, To string }
		if err := json.Unmarshal(line, &event); err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		if event.Msg == "QP state" && event.Transport == transport && event.To == "RTS" {
			n++
		}
	}
	return n, nil
}
