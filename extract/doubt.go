package extract

import (
	"math"
	"slices"

	"eaglebatch/extract/model"
)

// poor is a sample few of whose states speak for their next token.
type poor struct {
	rows, hits int
	log        float64 // sum of log-probabilities
}

// note keeps a sample's scores where they are poor. By chance another sample's
// states hit now and then, with tokens that are frequent. Held: mu.
func (s *sense) note(q *senseRows, scores []model.Score) {
	p := poor{rows: len(scores)}
	for _, x := range scores {
		p.hits += int(count(x.Top1))
		p.log += x.LogProb
	}
	delete(q.job.poor, q.entry)
	if p.hits*8 <= p.rows {
		q.job.poor[q.entry] = p
	}
}

// doubt returns the entries of a job whose samples are all scored, whose states
// do not speak for their own next tokens while those of the others do: they may
// have the states of another sample. Text that is hard to foretell has few hits
// too, but the tokens that come are not held for next to impossible. It is asked
// when the blob is complete, so that the first samples are held to what came
// after them too.
func (s *sense) doubt(j *job) (entries []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total < judgeRows || s.minTop1 <= 0 {
		return nil
	}
	share := float64(s.top1) / float64(s.total)
	hopeless := -math.Log(float64(s.head.Vocab())) / 2
	for entry, p := range j.poor {
		if atMost(p.hits, p.rows, share) < doubtful && p.log/float64(p.rows) < hopeless {
			entries = append(entries, entry)
		}
	}
	slices.Sort(entries)
	return entries
}

// atMost is the chance of at most k hits in n rows, where each is one with
// chance p.
func atMost(k, n int, p float64) (sum float64) {
	if p >= 1 {
		return 0
	}
	term := math.Pow(1-p, float64(n))
	for i := 0; i <= k; i++ {
		sum += term
		term *= float64(n-i) / float64(i+1) * p / (1 - p)
	}
	return sum
}

// telling is how many rows it takes to doubt a sample that has hardly a hit.
// Held: mu.
func (s *sense) telling() int {
	miss := 1 - float64(s.top1)/float64(s.total)
	if miss <= 0 {
		return laterRows
	}
	n := 1.25 * math.Log(doubtful) / math.Log(miss)
	return int(min(max(n, laterRows), mostRows)) // +Inf where all miss
}
