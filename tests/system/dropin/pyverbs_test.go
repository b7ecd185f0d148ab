//go:build linux && amd64

package dropin

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/debianroot"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// pyverbsTests is the directory of rdma-core's tests in Debian's package python3-pyverbs, some of
// them compressed.
const pyverbsTests = "/usr/share/doc/rdma-core/tests"

// fewPyverbsModules are those of its modules that run by default.
var fewPyverbsModules = []string{"test_cqex", "test_device", "test_mr", "test_qp", "test_qpex"}

// pyverbsModules returns its modules that are not for mlx5.
func pyverbsModules(t *testing.T) (modules []string) {
	t.Helper()
	files, err := filepath.Glob(pyverbsTests + "/test_*.py*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		if !strings.HasPrefix(name, "test_mlx5") {
			modules = append(modules, name)
		}
	}
	return modules
}

// expected is the result of a test of pyverbs that does not end with ok, and the reason.
type expected struct{ result, reason string }

// pyverbsKnown are the tests of known releases of pyverbs, and the results of those that do not end
// with ok.
type pyverbsKnown struct {
	tests    map[string]bool
	expected map[string]expected
}

// readPyverbsKnown reads testdata/pyverbs_tests.txt and pyverbs.txt.
func readPyverbsKnown(t *testing.T) pyverbsKnown {
	t.Helper()
	k := pyverbsKnown{map[string]bool{}, map[string]expected{}}
	for file, take := range map[string]func(line string){
		"testdata/pyverbs_tests.txt": func(line string) { k.tests[line] = true },
		"testdata/pyverbs.txt": func(line string) {
			if f := strings.SplitN(line, " ", 3); len(f) == 3 {
				k.expected[f[1]] = expected{f[0], f[2]}
			}
		},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
				take(line)
			}
		}
	}
	return k
}

// wrong says what is wrong with the result of a test, or "".
func (k pyverbsKnown) wrong(test, result string) string {
	switch want, ok := k.expected[test]; {
	case !ok && result != "ok":
		return "want ok"
	case ok && want.result != result && want.result != "any":
		return fmt.Sprintf("testdata/pyverbs.txt has it as %s: %s", want.result, want.reason)
	}
	return ""
}

// module reports whether a known release has tests in a module.
func (k pyverbsKnown) module(name string) bool {
	for test := range k.tests {
		if strings.HasPrefix(test, name+".") {
			return true
		}
	}
	return false
}

// TestPyverbs runs the tests of pyverbs, in the long run those of all modules. It uses sockets of
// the loopback interface, with the interface's first address. Some tests ask the kernel for that.
// Each must end as testdata/pyverbs.txt says, or with ok if it is not listed. Those that are new in
// a pyverbs newer than the newest known one are logged if they do not.
func TestPyverbs(t *testing.T) {
	gate.System(t)
	const args = "--link kernel:lo --addr 127.0.0.1 --sysfs on"
	needs(t, "/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs")
	needs(t, pyverbsTests, "python3-pyverbs, with its documentation: it has its tests there")
	build(t)
	dir := shared(t)
	unpackPyverbs(t, filepath.Join(dir, "tests"))
	if out, err := runner(t.Context(), t, dir, args, "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace for a user without privileges: %s", out)
	}
	modules := fewPyverbsModules
	if os.Getenv("SOFTRNIC_LONG") != "" {
		modules = pyverbsModules(t)
	}
	known, release := readPyverbsKnown(t), installedRelease("python3-pyverbs")
	total := map[string]int{}
	counts := "| module | ok | skipped | failed |\n|---|---|---|---|\n"
	for _, module := range modules {
		t.Run(module, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out, err := runner(ctx, t, dir, args, "python3", filepath.Join(dir, "run_pyverbs.py"), dir, module, "softrnic0",
				"1").CombinedOutput()
			if err != nil {
				complain(t, release, known.module(module), "%s: %v\n%s", module, err, out)
				return
			}
			count := map[string]int{}
			for line := range strings.Lines(string(out)) {
				f := strings.SplitN(strings.TrimSpace(line), " ", 3)
				if len(f) < 2 || !strings.HasPrefix(f[1], module+".") {
					continue
				}
				count[f[0]]++
				if wrong := known.wrong(f[1], f[0]); wrong != "" {
					complain(t, release, known.tests[f[1]], "%s\n%s\n%s", line, wrong, out)
				}
			}
			if len(count) == 0 {
				complain(t, release, known.module(module), "%s: no test was run\n%s", module, out)
			}
			t.Log(count)
			for result, n := range count {
				total[result] += n
			}
			if count["ok"] > 0 {
				programs.Ran(t, "pyverbs "+module, "sockets (RoCEv2)")
			}
			counts += fmt.Sprintf("| `%s` | %d | %d | %d |\n", module, count["ok"], count["skipped"], count["failed"])
		})
	}
	counts += fmt.Sprintf("| all | %d | %d | %d |\n", total["ok"], total["skipped"], total["failed"])
	if os.Getenv("SOFTRNIC_LONG") != "" && os.Getenv("SOFTRNIC_TABLE") != "" && !t.Failed() {
		saveCounts(t, counts)
	}
	for _, result := range slices.Sorted(maps.Keys(total)) {
		t.Logf("result: %d %s", total[result], result)
	}
	if n := total["ok"]; os.Getenv("SOFTRNIC_LONG") != "" && n < 140 && !t.Failed() {
		t.Errorf("%d tests pass, want 140 at least", n)
	}
}

// TestPyverbsCounters runs testdata/test_comp_cntr.py: completion counters by pyverbs.
func TestPyverbsCounters(t *testing.T) {
	gate.System(t)
	const args = "--link kernel:lo --addr 127.0.0.1 --sysfs on"
	needs(t, "/usr/lib/python3/dist-packages/pyverbs", "python3-pyverbs")
	if found, _ := filepath.Glob("/usr/lib/python3/dist-packages/pyverbs/comp_cntr.*"); found == nil {
		t.Skip(programs.Known + "pyverbs before rdma-core 65 has no completion counters")
	}
	const module = "test_comp_cntr"
	dir := shared(t)
	unpackPyverbs(t, filepath.Join(dir, "tests"))
	text, err := os.ReadFile("testdata/" + module + ".py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tests", module+".py"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := runner(ctx, t, dir, args, "python3", filepath.Join(dir, "run_pyverbs.py"), dir, module, "softrnic0", "1").CombinedOutput()
	if n := strings.Count("\n"+string(out), "\nok "+module+"."); err != nil || n != 3 {
		t.Errorf("%d of 3 tests are ok: %v\n%s", n, err, out)
	}
}

// saveCounts writes the number of passed tests of each module to the README.
func saveCounts(t *testing.T, counts string) {
	t.Helper()
	here, err := debianroot.Here()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	now, err := programs.Replace(string(text), "TestPyverbs on "+here, counts)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("README.md", []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unpackPyverbs copies the tests of pyverbs to a directory, with their runner.
func unpackPyverbs(t *testing.T, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(pyverbsTests + "/*.py*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "testdata/run_pyverbs.py") {
		in, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var r io.Reader = in
		if strings.HasSuffix(name, ".gz") {
			if r, err = gzip.NewReader(in); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(r)
		_ = in.Close()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(to, strings.TrimSuffix(filepath.Base(name), ".gz"))
		if strings.HasPrefix(name, "testdata") {
			file = filepath.Join(to, "..", filepath.Base(name))
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
