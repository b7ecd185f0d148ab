package stacktest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// listFile, in a package's directory, lists the package's tests that do not run over the media,
// with reasons. A reason ends with a colon. The tests are indented below it: TestX, or TestX/MEDIUM
// (without spaces) for one medium.
const listFile = "testdata/media.txt"

// list reads listFile. It returns a reason for each entry.
func list(t *testing.T) map[string]string {
	t.Helper()
	reasons, reason := map[string]string{}, ""
	for line := range strings.Lines(string(must(os.ReadFile(listFile))(t))) {
		switch text := strings.TrimSpace(line); {
		case text == "" || text[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			for _, name := range strings.Fields(text) {
				if reasons[name] != "" || reason == "" {
					t.Errorf("%s: %s is listed twice or without a reason", listFile, name)
				}
				reasons[name] = reason
			}
		default:
			reason = strings.TrimSuffix(text, ":")
		}
	}
	return reasons
}

// entry returns the name in listFile of a test over a medium.
func entry(test, medium string) string { return test + "/" + strings.ReplaceAll(medium, " ", "_") }

// Over runs a test over media: over all of them in the system run and in the long run, otherwise
// over those that chosen returns. Media that listFile excludes are skipped. The test runs in
// parallel with other tests, its media one after the other.
func Over(t *testing.T, f func(t *testing.T, m Medium)) {
	t.Parallel()
	media := without(t.Name(), list(t))
	if !InSystem() {
		media = chosen(t.Name(), media)
	}
	for _, m := range media {
		t.Run(m.Name, func(t *testing.T) { f(t, m) })
	}
}

// without returns the media except those that listFile excludes for a test.
func without(test string, reasons map[string]string) []Medium {
	return slices.DeleteFunc(slices.Clone(Media), func(m Medium) bool { return reasons[entry(test, m.Name)] != "" })
}

// chosen returns the media that a test runs over by default: pipe, the kernel's sockets, one
// unprivileged medium and one privileged medium. They are chosen by a hash of the test's name, so
// that all tests together cover all media.
func chosen(test string, media []Medium) (few []Medium) {
	var free, privileged []Medium
	for _, m := range media {
		switch {
		case m.Name == "pipe" || m.Name == "kernel":
			few = append(few, m)
		case m.privileged:
			privileged = append(privileged, m)
		default:
			free = append(free, m)
		}
	}
	name := fnv.New32a()
	_, _ = name.Write([]byte(test))
	for _, some := range [][]Medium{free, privileged} {
		if len(some) > 0 {
			few = append(few, some[name.Sum32()%uint32(len(some))])
		}
	}
	return few
}

// CheckList checks that listFile lists exactly the tests that do not run over the media. The others
// together must cover each medium by default. A test runs over the media if it calls one of the
// functions that over names.
func CheckList(t *testing.T, over ...string) {
	t.Helper()
	tests := map[string]bool{} // value: the test runs over the media
	for _, file := range must(filepath.Glob("*_test.go"))(t) {
		for _, d := range must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t).Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if !isFunc || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") ||
				fn.Name.Name == "TestMain" || fn.Name.Name == t.Name() {
				continue
			}
			tests[fn.Name.Name] = false
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, isIdent := n.(*ast.Ident); isIdent && slices.Contains(over, id.Name) {
					tests[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	reasons, covered := list(t), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		switch {
		case !tests[name] && reasons[name] == "":
			t.Errorf("%s does not run over the media, and %s has no reason", name, listFile)
		case tests[name]:
			var by []string
			for _, m := range chosen(name, without(name, reasons)) {
				by, covered[m.Name] = append(by, m.Name), true
			}
			t.Logf("over the media: %s, by default over %s", name, strings.Join(by, ", "))
		}
	}
	for _, m := range Media {
		if !covered[m.Name] {
			t.Errorf("no test runs over %s by default", m.Name)
		}
	}
	for name, reason := range reasons {
		test, medium, one := strings.Cut(name, "/")
		isOver, is := tests[test]
		known := runtime.GOOS != "linux" || slices.ContainsFunc(Media, func(m Medium) bool { return entry(test, m.Name) == name })
		if !is || isOver != one || one && !known {
			t.Errorf("%s lists %s (%s): there is no such test or medium %q, or the test runs over the media",
				listFile, name, reason, medium)
		}
	}
}
