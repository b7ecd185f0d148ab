//go:build !race

package rdmatransport_test

const raceEnabled = false
