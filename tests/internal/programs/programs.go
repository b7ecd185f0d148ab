// Package programs keeps the table of programs that were written for libibverbs and librdmacm and were seen to run on the drop-in
// libraries. Tests that run such programs say so with Ran. Where SOFTRNIC_TABLE is set, Save adds what has passed or failed to
// table.json, and writes the table of the README anew:
//
//	SOFTRNIC_TABLE=1 SOFTRNIC_LONG=1 go test ./tests/dropin ./tests/interop -run 'TestDropin|TestPingpong|TestPerftest|TestConnectionManager|TestQperf|TestFio'
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
	"slices"
	"strings"
	"sync"
	"testing"
)

// Run is a program that was run.
type Run struct {
	Program string `json:"program"`
	Package string `json:"package"` // of Debian, with its version
	Options string `json:"options"`
	Over    string `json:"over"` // the link and the wire protocol, or the peer
	Passed  bool   `json:"passed"`
}

var (
	mu   sync.Mutex
	runs []Run
)

// Ran has the outcome of a test recorded, in which a command line is run over a link.
func Ran(t testing.TB, command, over string) {
	if os.Getenv("SOFTRNIC_TABLE") == "" {
		return
	}
	t.Helper()
	program, options, _ := strings.Cut(command, " ")
	r := Run{Program: program, Package: debian(program), Options: options, Over: over}
	t.Cleanup(func() {
		r.Passed = !t.Failed()
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, r)
	})
}

// debian is the package that a program is in, and its version.
func debian(program string) string {
	file, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	out, err := exec.Command("dpkg-query", "-S", file).Output()
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(out), ":")
	out, err = exec.Command("dpkg-query", "-W", "-f", "${Package} ${Version}", name).Output()
	if err != nil {
		return name
	}
	return string(out)
}

// Save adds what was recorded to the table. directory is that of this package, below which nothing is but the table.
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
		all = slices.DeleteFunc(all, func(o Run) bool { return o.Program == r.Program && o.Options == r.Options && o.Over == r.Over })
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Program, b.Program), cmp.Compare(a.Options, b.Options), cmp.Compare(a.Over, b.Over))
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
	readme := filepath.Join(directory, "../../../README.md")
	was, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	now, err := replace(string(was), render(all))
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(now), 0o644)
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

// The lines of the README between which the table is.
const (
	begin = "<!-- The table is written by tests/internal/programs. -->\n"
	end   = "<!-- So far the table. -->\n"
)

// replace puts a table into the README's text.
func replace(readme, table string) (string, error) {
	before, rest, ok := strings.Cut(readme, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", errors.New("the README has no place for the table")
	}
	return before + begin + table + end + after, nil
}

// render returns the table in Markdown: a line for each program.
func render(all []Run) string {
	var b strings.Builder
	b.WriteString("| program | package | options | over | result |\n|---|---|---|---|---|\n")
	for len(all) > 0 {
		first := all[0]
		n := slices.IndexFunc(all, func(r Run) bool { return r.Program != first.Program })
		if n < 0 {
			n = len(all)
		}
		var options, over []string
		result, failed := "passed", 0
		for _, r := range all[:n] {
			if o := "`" + shorten(r.Options) + "`"; o != "``" && !slices.Contains(options, o) {
				options = append(options, o)
			}
			if !slices.Contains(over, r.Over) {
				over = append(over, r.Over)
			}
			if !r.Passed {
				failed++
				result = fmt.Sprintf("%d of %d failed", failed, n)
			}
		}
		slices.Sort(over)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", first.Program, first.Package, strings.Join(options, ", "), strings.Join(over, ", "), result)
		all = all[n:]
	}
	return b.String()
}

// shorten leaves out the options that do not say what is tested: how many messages there are, where the server is, how long a
// lost packet is waited for, and that nobody is to be warned of the processor's frequency.
func shorten(options string) string {
	var kept []string
	fields := strings.Fields(options)
	for i := 0; i < len(fields); i++ {
		switch f := fields[i]; {
		case (f == "-n" || f == "-u") && i+1 < len(fields):
			i++
		case f == "-F":
		case f == "SERVER" && i > 0 && i == len(fields)-1 && (fields[i-1] == "-F" || !strings.HasPrefix(fields[i-1], "-")):
		default:
			kept = append(kept, f)
		}
	}
	return strings.Join(kept, " ")
}

// Counted is the sum of what processes have counted whose SOFTRNIC_COUNTERS was this file.
func Counted(file string) (map[string]uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("no process has said what it counted: %w", err)
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
