//go:build linux && amd64

package dropin

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// newestRelease is the newest rdma-core that is known here: the libraries compile with its headers,
// and have its symbols.
const newestRelease = 65

// rdmaCoreOf returns the release of rdma-core of a Debian version: 65 of "65.0-1.1". It is 0 of a
// package that is not installed.
func rdmaCoreOf(version string) int {
	n, err := strconv.Atoi(regexp.MustCompile(`^(?:\d+:)?(\d+)|$`).FindStringSubmatch(version)[1])
	if err != nil {
		return 0
	}
	return n
}

// installedRelease returns the release of rdma-core of an installed package.
func installedRelease(pkg string) int { return rdmaCoreOf(programs.Version(pkg)) }

// isNews reports whether something that an installed rdma-core has, and which is not as wanted, is
// news and no failure: the release is newer than the newest known one, and no known one has it.
func isNews(release int, known bool) bool { return release > newestRelease && !known }

// complain reports something that is not as wanted: an error, or a line of the log if it is news.
func complain(t testing.TB, release int, known bool, format string, args ...any) {
	t.Helper()
	if isNews(release, known) {
		t.Logf("new in rdma-core %d: "+format, append([]any{release}, args...)...)
	} else {
		t.Errorf(format, args...)
	}
}

// TestNews: what a release newer than the newest known one has does not fail by its version alone.
func TestNews(t *testing.T) {
	gate.System(t)
	for _, c := range []struct {
		version string
		release int
		known   bool
		news    bool
	}{
		{"44.0-2", 44, false, false}, {"56.1-1", 56, false, false}, {"65.0-1.1", 65, false, false},
		{"66.0-1", 66, false, true}, {"66.0-1", 66, true, false}, {"1:100.1~rc1-1", 100, false, true}, {"", 0, false, false},
	} {
		release := rdmaCoreOf(c.version)
		if got := isNews(release, c.known); release != c.release || got != c.news {
			t.Errorf("%q is release %d, and news: %v; want %d, %v", c.version, release, got, c.release, c.news)
		}
	}
}

// TestNewPyverbsTests: a test of a newer pyverbs that no known one has is news, whatever its
// result. Known ones are judged in each release, as are all tests of known releases.
func TestNewPyverbsTests(t *testing.T) {
	gate.System(t)
	known := readPyverbsKnown(t)
	for test := range known.expected {
		if !known.tests[test] {
			t.Errorf("testdata/pyverbs_tests.txt lacks %s, which pyverbs.txt has", test)
		}
	}
	const (
		ok      = "test_pd.PDTest.test_dealloc_pd"
		skipped = "test_tag_matching.TMTest.test_tm_no_tag"
		other   = "test_pd.PDTest.test_of_later_release"
	)
	for _, c := range []struct {
		release      int
		test, result string
		right, news  bool
	}{
		{65, ok, "ok", true, false}, {66, ok, "ok", true, false}, {65, ok, "failed", false, false}, {66, ok, "failed", false, false},
		{66, ok, "skipped", false, false}, {65, skipped, "skipped", true, false}, {66, skipped, "skipped", true, false},
		{66, skipped, "failed", false, false}, {66, skipped, "ok", false, false}, {65, other, "ok", true, false},
		{65, other, "failed", false, false}, {66, other, "failed", false, true}, {66, other, "skipped", false, true},
	} {
		wrong := known.wrong(c.test, c.result)
		if news := isNews(c.release, known.tests[c.test]); (wrong == "") != c.right || wrong != "" && news != c.news {
			t.Errorf("release %d: %s %s: %q, news: %v", c.release, c.test, c.result, wrong, news)
		}
	}
	if !known.module("test_pd") || known.module("test_of_later_release") {
		t.Error("the known modules are not those of the known tests")
	}
}
