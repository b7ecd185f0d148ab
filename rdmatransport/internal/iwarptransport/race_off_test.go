//go:build !race

package iwarptransport_test

const raceEnabled = false
